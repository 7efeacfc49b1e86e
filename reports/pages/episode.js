// The page of episodes: view, path, attention and charts of the chosen step. Reads DATA; see `reports/episode.py`.
const NAMES = { routed: "routed memory", compressed: "compressed memory", memory: "memory", segment: "segment" };
const MEANS = {
  segment: (count) => `the present step and up to ${count - 1} before it, one in a slot`, memory: (count) => `the ${count} steps before the segment, one in a slot`,
  compressed: (count, each) => `${count} slots of still older steps, each a learned summary of ${each === 1 ? "one step" : `${each} steps (compression rate ${each})`}`,
  routed: (count) => `${count} slots of steps of any age, of which a step sees those in the cluster of its own content`,
};
const MEAN = "mean", SHOWN = 12, LARGEST = 104, WIDEST = 208, SMALLEST = 22, INSET = 8;

let episode, sheets, step = 0, timer = null, charts = [], led = false;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + readable(Math.abs(value));
const percent = (value) => {
  if (value >= 0.995 && value < 1) return `${(Math.floor(1000 * value) / 10).toFixed(1)} %`;  // 100 % is all
  return `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
};
const span = (first, last) => (first === last ? `${first}` : `${first}–${last}`);
const inCluster = ({ cluster, group }) => (cluster === undefined ? "" : `cluster ${cluster}${group === undefined ? "" : ` of group ${group}`}`);

// A canvas as large as it is shown, in the screen's own pixels; returns its context in CSS pixels.
function prepared(canvas, height) {
  const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return [context, width, height];
}

// Draws the view of a step into a box.
function paint(context, at, x, y, width, height) {
  const { columns, rows } = DATA.sheet, each = columns * rows;
  const within = at % each;
  const left = (within % columns) * DATA.sheet.width, top = Math.floor(within / columns) * DATA.sheet.height;
  context.imageSmoothingEnabled = false;
  context.drawImage(sheets[Math.floor(at / each)], left, top, DATA.sheet.width, DATA.sheet.height, x, y, width, height);
}

function image(source) {
  const loaded = new Image();
  loaded.src = source;
  return loaded.decode().then(() => loaded);
}

// Attention of a step: weights of slots, and the first and last step that each holds, by the layer and head chosen.
function attention(at, of = episode) {
  const { layers, kinds } = of, choice = get("layer").value, head = get("head").value;
  const chosen = choice === MEAN ? layers : [layers[Number(choice)]];
  const { heads, slots, steps, sizes, rings } = chosen[0];
  const weights = new Float64Array(slots);
  let total = 0;
  for (const layer of chosen) {
    for (let index = 0; index < heads; index++) {
      if (head !== MEAN && Number(head) !== index) continue;
      const offset = (at * heads + index) * slots;
      for (let slot = 0; slot < slots; slot++) {
        const weight = (layer.weights[offset + slot] / 255) ** 2;  // stored as square roots
        weights[slot] += weight;
        total += weight;
      }
    }
  }
  const found = [];
  for (let slot = 0; slot < slots; slot++) {
    const first = steps[2 * (at * slots + slot)], last = steps[2 * (at * slots + slot) + 1];
    const kind = kinds[slot < sizes[0] ? 0 : slot < sizes[0] + sizes[1] ? 1 : 2];
    if (first < 0) continue;
    const slotted = { kind, first, last, weight: weights[slot] / total };
    if (rings && slot < sizes[0]) {  // group by group, and in each cluster by cluster
      const ring = Math.floor(slot / rings.window);
      slotted.cluster = (ring % rings.clusters) + 1;
      if (rings.groups > 1) slotted.group = Math.floor(ring / rings.clusters) + 1;
    }
    found.push(slotted);
  }
  return found;
}

// Replaces what is packed in an episode by arrays, once.
const unpack = (of) => of.unpacking ??= (async () => {
  for (const layer of of.layers) {
    layer.weights = await unpacked(layer.weights, Uint8Array);
    layer.steps = await unpacked(layer.steps, Int32Array);
    layer.most = layer.steps.reduce((most, last, index) => (index % 2 ? Math.max(most, last - layer.steps[index - 1] + 1) : most), 1);  // steps in a slot
  }
  of.probabilities = await unpacked(of.probabilities, Uint8Array);
  for (const name of of.numbers ? ["received", "means", "scales"] : []) of.numbers[name] = await unpacked(of.numbers[name], Float32Array);
  of.drawn = of.drawn && await unpacked(of.drawn, Uint8Array);
})();

async function choose(index, at = 0) {
  stop();
  const chosen = DATA.episodes[index], asked = DATA.episodes.filter(({ choices }) => choices.some(Boolean));
  [sheets] = await Promise.all([Promise.all(chosen.sheets.map(image)), ...[chosen, ...asked].map(unpack)]);
  episode = chosen;
  get("slider").max = episode.values.length - 1;
  const steps = episode.values.map((_, at) => at);
  for (const name of ["values", "rewards"]) get(name).replaceChildren();
  const shared = { inset: INSET, domain: [0, steps.length - 1], bands: visits().map(([from, to]) => ({ from, to })), pick: (x) => go(Math.round(x)) };
  charts = [
    new LineChart(get("values"), [{ name: "value", colour: "var(--s0)", x: steps, y: episode.values }], { ...shared, height: 96, label: "value at each step", include: [0, 0] }),
    new LineChart(get("rewards"), [{ name: "reward", colour: "var(--s6)", x: steps, y: episode.rewards, stems: true }], { ...shared, height: 68, label: "reward after each step", include: [0, 0] }),
  ];
  get("mistake").hidden = !episode.choices.some(Boolean);
  go(at);
  mark();
  document.body.dataset.ready = index;
}

// [first, last] of each stay in the room where what must be remembered is shown.
function visits(of = episode) {
  const found = [];
  of.poses?.forEach((pose, at) => {
    if (pose[3] !== 0) return;
    if (found.length && found[found.length - 1][1] === at - 1) found[found.length - 1][1] = at;
    else found.push([at, at]);
  });
  return found;
}

const across = (width, at) => INSET + ((width - 2 * INSET) * at) / Math.max(1, episode.values.length - 1);
const rewarded = () => episode.rewards.flatMap((reward, at) => (reward ? [at] : []));

function mark() {
  const width = get("marks").parentElement.clientWidth;
  const largest = Math.max(...episode.rewards.map(Math.abs));
  get("marks").setAttribute("viewBox", `0 0 ${width} 12`);
  get("marks").replaceChildren(...rewarded().map((at) => {
    const reward = episode.rewards[at], size = 4 + 8 * Math.sqrt(Math.abs(reward) / largest);
    const tick = shape("rect", { x: across(width, at) - 1.5, y: 12 - size, width: 3, height: size, rx: 1, fill: reward > 0 ? "var(--good)" : "var(--bad)" });
    tick.dataset.step = at;
    tick.append(shape("title", {}, `step ${at}: reward ${signed(reward)}`));
    return tick;
  }), ...mistakes().map((at) => {
    const left = across(width, at), cross = shape("path", { d: `M${left - 4} 2l8 8m0 -8l-8 8`, stroke: "var(--bad)", "stroke-width": 2 });
    cross.dataset.step = at;
    cross.append(shape("title", {}, `step ${at}: wrong choice`));
    return cross;
  }));
}

// The environment's text at a step.
const instructed = (of, at) => of.instructions.filter(([from]) => from <= at).at(-1)[1];

function facts() {
  const chosen = episode.choices[step] ? [["choice", episode.choices[step] > 0 ? "right" : "wrong"]] : [];
  const room = DATA.plan && episode.poses ? [["place", DATA.plan.rooms[episode.poses[step][3]]]] : [];
  const known = Object.entries(episode.situations?.[step] ?? {}).map(([name, words]) => [name, [].concat(words)[0]]);
  const told = episode.instructions ? [["instruction", instructed(episode, step)]] : [];
  const vector = DATA.columns.length > 0;
  const rows = [
    ["step", `${step} of ${episode.values.length - 1}`], ...told, ["action", vector ? briefly(episode, step) : DATA.actions[episode.actions[step]]],
    ["value", signed(episode.values[step])], ["score so far", signed(episode.scores[step])], ...room, ...known, ...chosen,
  ];
  if (vector) showColumns(episode, step);
  else probabilities();
  get("here").setAttribute("href", `#${Number(get("episode").value) + 1}.${step}`);
  get("facts").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// Bars of the actions of a Discrete space.
function probabilities() {
  const count = DATA.actions.length, chances = episode.probabilities.subarray(step * count, (step + 1) * count);
  get("policy").replaceChildren(...DATA.actions.flatMap((name, action) => {
    const taken = action === episode.actions[step] ? { class: "chosen" } : {};
    const share = chances[action] / 255;
    return [element("span", taken, name), element("i", { style: `width: ${100 * share}%` }), element("b", taken, percent(share))];
  }));
}

function go(to) {
  step = Math.max(0, Math.min(episode.values.length - 1, to));
  document.body.dataset.step = step;
  get("slider").value = step;
  get("slider").setAttribute("aria-valuetext", `step ${step}, value ${signed(episode.values[step])}`);
  const view = get("view"), scale = Math.max(1, Math.ceil(768 / DATA.sheet.width));
  view.width = DATA.sheet.width * scale;
  view.height = DATA.sheet.height * scale;
  paint(view.getContext("2d"), step, 0, 0, view.width, view.height);
  if (episode.drawn) redraw();
  name();
  get("value").textContent = signed(episode.values[step]);
  get("reward").textContent = episode.rewards[step] ? signed(episode.rewards[step]) : "none";
  for (const chart of charts) chart.cursor(step);
  facts();
  follow();
  if (episode.layers.length) look();
  compare();
  announce();
  if (window.parent !== window && !led) window.parent.postMessage([Number(get("episode").value), step], "*");
}

// Goes where a page beside this one has gone; see `together.html`.
async function lead({ source, data }) {
  if (window.parent === window || source !== window.parent || !episode || !DATA.episodes[data[0]]) return;
  led = true;
  stop();
  if (Number(get("episode").value) === data[0]) {
    go(data[1]);
  } else {
    get("episode").value = data[0];
    await choose(data[0], data[1]);
  }
  led = false;
}

// Marks above the view the things that the environment names and that are in view.
function name() {
  const half = ((DATA.plan?.view ?? 90) * Math.PI) / 360;
  get("named").replaceChildren(...(DATA.plan && episode.poses ? inView(episode, step) : []).map((thing) => {
    const share = 0.5 - Math.tan((bearing(episode, step, thing) * Math.PI) / 180) / Math.tan(half) / 2;
    return element("span", { style: `left: clamp(3.2em, ${100 * share}%, calc(100% - 3.2em))`, title: thing.words }, `${thing.name} ▾`);
  }));
}

// The view as the agent redraws it from its core's input.
function redraw() {
  const [height, width, channels] = DATA.drawn, canvas = get("drawn"), pixels = new ImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      pixels.data[4 * pixel + channel] = episode.drawn[(step * width * height + pixel) * channels + Math.min(channel, channels - 1)];
    }
    pixels.data[4 * pixel + 3] = 255;
  }
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// The path from above; y grows to the left of a player who looks along x.
function follow() {
  if (!DATA.plan || !episode.poses) return;
  const { walls, areas, spots } = DATA.plan;
  const xs = walls.flatMap(([a, , b]) => [a, b]), ys = walls.flatMap(([, a, , b]) => [a, b]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const width = get("map").clientWidth, scale = (width - 16) / (right - left);
  const [context] = prepared(get("map"), (high - low) * scale + 16);
  get("map").style.height = `${(high - low) * scale + 16}px`;
  const point = (x, y) => [8 + (x - left) * scale, 8 + (high - y) * scale];
  for (const [x0, y0, x1, y1] of Object.values(areas)) {
    context.fillStyle = colour("line");
    context.fillRect(...point(x0, y1), (x1 - x0) * scale, (y1 - y0) * scale);
  }
  context.strokeStyle = colour("faint");
  context.lineWidth = 1.5;
  for (const [x0, y0, x1, y1] of walls) {
    context.beginPath();
    context.moveTo(...point(x0, y0));
    context.lineTo(...point(x1, y1));
    context.stroke();
  }
  for (const spot of Object.values(spots)) {
    context.beginPath();
    context.arc(...point(...spot), 5, 0, 7);
    context.stroke();
  }
  const mass = episode.layers.length ? byStep() : null;
  const largest = mass ? Math.max(...mass.map((entry) => entry.weight), 1e-9) : 1;
  for (let at = Math.max(0, step - 400); at <= step; at++) {
    const [x, y] = point(episode.poses[at][0], episode.poses[at][1]);
    const age = step - at;
    context.globalAlpha = Math.max(0.12, 1 - age / 40);
    context.fillStyle = colour("faint");
    context.beginPath();
    context.arc(x, y, 1.6, 0, 7);
    context.fill();
    if (mass && at < step && mass[at].weight > 0.002) {
      context.globalAlpha = 0.75;
      context.fillStyle = colour(mass[at].kind);
      context.beginPath();
      context.arc(x, y, 1.5 + 7 * Math.sqrt(mass[at].weight / largest), 0, 7);
      context.fill();
    }
  }
  context.globalAlpha = 1;
  const [x, y] = point(episode.poses[step][0], episode.poses[step][1]), yaw = (episode.poses[step][2] * Math.PI) / 180;
  context.fillStyle = colour("ink");
  context.beginPath();
  context.moveTo(x + 11 * Math.cos(yaw), y - 11 * Math.sin(yaw));
  for (const turn of [2.5, -2.5]) context.lineTo(x + 8 * Math.cos(yaw + turn), y - 8 * Math.sin(yaw + turn));
  context.fill();
  context.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  [context.textAlign, context.lineJoin, context.lineWidth, context.strokeStyle] = ["center", "round", 3, colour("paper")];
  for (const [name, known] of Object.entries(episode.situations?.[step] ?? {})) {
    const [, east, north] = [].concat(known);
    if (!Number.isFinite(east) || !Number.isFinite(north)) continue;
    const [at, down] = point(east, north), half = context.measureText(name).width / 2 + 2;
    context.beginPath();
    context.arc(at, down, 5, 0, 7);
    context.fill();
    const beside = walls.filter(([a, b, c, d]) => a === c && (b - north) * (d - north) < 0).map(([a]) => point(a, 0)[0]);
    const middle = Math.max(half + Math.max(0, ...beside.filter((wall) => wall < at)), Math.min(Math.min(width, ...beside.filter((wall) => wall > at)) - half, at));
    for (const draw of ["strokeText", "fillText"]) context[draw](name, middle, down < 22 ? down + 18 : down - 9);
  }
}

// Attention on each step of the episode; a group shares its weight out equally.
function byStep() {
  const mass = episode.values.map(() => ({ weight: 0, kind: "segment" }));
  for (const { kind, first, last, weight } of attention(step)) {
    for (let at = first; at <= last; at++) mass[at] = { kind, weight: mass[at].weight + weight / (last - first + 1) };
  }
  return mass;
}

function look() {
  const slots = attention(step), mass = byStep();
  ribbon(mass);
  const share = (kind) => slots.reduce((sum, slot) => sum + (slot.kind === kind ? slot.weight : 0), 0);
  const present = episode.kinds.filter((_, index) => episode.layers.some((layer) => layer.sizes[index]));
  get("kinds").replaceChildren(...present.map((kind) => element("span", { style: `width: ${100 * share(kind)}%; background: var(--${kind})` })));
  get("shares").replaceChildren(...present.map((kind) => {
    const node = element("span"), swatch = element("i", { style: `color: var(--${kind})` });
    node.append(swatch, `${NAMES[kind]} `, element("b", {}, percent(share(kind))));
    return node;
  }));
  const { sizes, most } = episode.layers[get("layer").value === MEAN ? 0 : Number(get("layer").value)];
  get("means").textContent = present.map((kind) => {
    const empty = slots.some((slot) => slot.kind === kind) ? "" : "; empty so far";
    return `${NAMES[kind][0].toUpperCase()}${NAMES[kind].slice(1)}: ${MEANS[kind](sizes[episode.kinds.indexOf(kind)], most)}${empty}.`;
  }).reverse().join(" ");
  get("did").replaceChildren(...did(step).map((text) => element("p", { class: "note" }, text)));
  const visit = visits().filter(([first]) => first <= step).pop();
  get("looks").textContent = "";
  if (visit) {
    const [weight, equal] = sharesOf(slots, visit);
    get("looks").textContent = `${percent(weight)} of it goes to the latest stay in the ${DATA.plan.rooms[0]}, steps ${span(...visit)}. If all slots had the same weight, it would be ${percent(equal)}.`;
  }
  get("rings").replaceChildren(...clusters(slots).map((text) => element("div", {}, text)));
  const largest = Math.max(...slots.map((slot) => slot.weight));
  const best = [...slots].sort((a, b) => b.weight - a.weight).slice(0, SHOWN).sort((a, b) => a.first - b.first);
  get("strip").replaceChildren(...best.map((slot) => thumbnail(slot, largest)));
  const rest = slots.length - best.length, left = 1 - best.reduce((sum, slot) => sum + slot.weight, 0);
  get("rest").textContent = rest > 0 ? `The other ${rest} slots together: ${percent(Math.max(0, left))}.` : "";
}

// What memory did at a step, in sentences.
function did(at) {
  const because = causeOf(episode, at);
  if (!because) return episode.effects ? ["It had nothing to remember yet."] : [];
  const { fall } = because, kinds = episode.kinds.flatMap((kind, index) => (
    episode.layers.some((layer) => layer.sizes[index]) ? [`without ${kind === "segment" ? "the earlier steps of the " : ""}${NAMES[kind]} ${oddsWithout(episode.effects.kinds[at][index])}`] : []));
  const most = fall < Math.log(1.1) ? "No few steps of its memory speak for the action that it took"
    : `Without ${stepsOf(because)} of its memory the odds of the action that it took would be ${oddsWithout(fall)}; no others matter as much`;
  const found = [`${most}. The odds would be ${kinds.join(", ")}.`], { agree, of, steps } = DATA.agreement ?? {};
  if (of) found.push(`At ${of} steps of this page the odds would fall to a tenth or less without some ${steps} steps. At ${agree} of them, the earlier step that got most attention is among these.`);
  return found;
}

// The clusters whose routed slots are attended to, each with its steps.
function clusters(slots) {
  const rings = new Map();
  for (const slot of slots.filter((each) => inCluster(each))) {
    rings.set(inCluster(slot), [...(rings.get(inCluster(slot)) ?? []), slot]);
  }
  return [...rings].flatMap(([name, ring]) => {
    const weight = ring.reduce((sum, slot) => sum + slot.weight, 0);
    if (!weight) return [];
    const runs = [];
    for (const { first } of ring) {
      if (runs.length && runs[runs.length - 1][1] === first - 1) runs[runs.length - 1][1] = first;
      else runs.push([first, first]);
    }
    return [`${percent(weight)} goes to ${name}, which holds ${ring.length > 1 ? "steps" : "step"} ${runs.map(([from, to]) => span(from, to)).join(", ")}.`];
  });
}

// One slot: its frames side by side, in a picture whose area is its weight.
function thumbnail(slot, largest) {
  const { kind, first, last, weight } = slot, cluster = inCluster(slot);
  const count = last - first + 1, columns = Math.ceil(Math.sqrt(count)), rows = Math.ceil(count / columns);
  const widest = get("strip").clientWidth - 2 * INSET, most = (widest * DATA.sheet.height) / DATA.sheet.width;
  const tall = Math.min(LARGEST, (WIDEST * DATA.sheet.height) / DATA.sheet.width);  // the largest weight's
  const height = Math.min(most, tall * Math.max(SMALLEST / LARGEST, Math.sqrt(weight / largest)));
  const width = (height * DATA.sheet.width) / DATA.sheet.height;
  const now = last === step && first === step;
  const canvas = element("canvas", { "aria-hidden": "true" });
  const ratio = window.devicePixelRatio || 1;
  const [across, down] = [Math.round((width * ratio) / columns), Math.round((height * ratio) / columns)];
  canvas.width = across * columns;
  canvas.height = down * rows;
  canvas.style.width = `${canvas.width / ratio}px`;
  canvas.style.height = `${canvas.height / ratio}px`;
  const context = canvas.getContext("2d"), gap = count > 1 ? 1 : 0;
  for (let index = 0; index < count; index++) {
    paint(context, first + index, (index % columns) * across, Math.floor(index / columns) * down, across - gap, down - gap);
  }
  const name = now ? "now" : span(first, last), title = `${NAMES[kind]}${cluster && `, ${cluster}`}, step ${span(first, last)}`;
  const button = element("button", {
    class: "slot", style: `border-bottom-color: var(--${kind})`, title: `${title}: go there`,
    "data-kind": kind, "data-first": first, "data-last": last, "data-weight": weight.toFixed(4), "data-cluster": cluster,
  });
  button.append(canvas, element("b", {}, percent(weight)), element("span", {}, name));
  if (cluster) button.append(element("br"), element("span", {}, cluster));
  button.addEventListener("click", () => go(first));
  return button;
}

function ribbon(mass) {
  const [context, width, height] = prepared(get("ribbon"), 46);
  const bar = Math.max(1.5, (width - 2 * INSET) / mass.length - 1);
  const largest = Math.sqrt(Math.max(...mass.map((entry) => entry.weight)));
  context.fillStyle = colour("band");
  for (const [first, last] of visits()) context.fillRect(across(width, first), 0, across(width, last) - across(width, first), height);
  mass.forEach(({ weight, kind }, at) => {
    if (!weight) return;
    const tall = Math.max(1.5, ((height - 4) * Math.sqrt(weight)) / largest);
    context.fillStyle = colour(kind);
    context.fillRect(across(width, at) - bar / 2, height - tall, bar, tall);
  });
  context.fillStyle = colour("line");
  context.fillRect(INSET, height - 1, width - 2 * INSET, 1);
  context.fillStyle = colour("ink");
  context.fillRect(across(width, step) - 0.75, 0, 1.5, height);
}

function stop() {
  clearInterval(timer);
  timer = null;
  get("play").textContent = "Play";
  get("play").setAttribute("aria-pressed", "false");
  if (episode) compare();
}

function play() {
  if (timer !== null) return stop();
  if (step === episode.values.length - 1) go(0);
  get("play").textContent = "Pause";
  get("play").setAttribute("aria-pressed", "true");
  timer = setInterval(() => {
    go(step + 1);
    if (step === episode.values.length - 1) stop();
  }, 1000 / (DATA.fps * Number(get("speed").value)));
}

const mistakes = (of = episode) => of.choices.flatMap((choice, at) => (choice < 0 ? [at] : []));

// [episode, step] of the next wrong choice, of this episode or of the next one that has any; none if none has.
function laterMistake() {
  const later = mistakes().find((at) => at > step), count = DATA.episodes.length, here = Number(get("episode").value);
  if (later !== undefined) return [here, later];
  const index = Array.from({ length: count }, (_, each) => (here + 1 + each) % count).find((each) => mistakes(DATA.episodes[each]).length);
  return index === undefined ? [] : [index, mistakes(DATA.episodes[index])[0]];
}

function nextMistake() {
  const [index, at] = laterMistake();
  if (index === undefined) return undefined;
  if (index === Number(get("episode").value)) return go(at);
  get("episode").value = index;
  return choose(index, at);
}

// Says on the button where the next mistake is.
function announce() {
  const [index] = laterMistake(), elsewhere = index !== undefined && index !== Number(get("episode").value);
  get("mistake").disabled = index === undefined;
  get("mistake").textContent = index === undefined ? "no mistake" : `next mistake${elsewhere ? ` (in episode ${index + 1})` : ""}`;
}

const nextReward = () => go(rewarded().find((at) => at > step) ?? step);
const formerReward = () => go(rewarded().reverse().find((at) => at < step) ?? step);
const KEYS = {
  ArrowLeft: () => go(step - 1), ArrowRight: () => go(step + 1), Home: () => go(0),
  End: () => go(episode.values.length - 1), n: nextReward, p: formerReward, m: nextMistake, " ": play,
};

document.addEventListener("keydown", (event) => {
  if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
  const on = event.target.tagName;
  if (on === "SELECT" || (["BUTTON", "SUMMARY"].includes(on) && event.key === " ")) return;
  event.preventDefault();
  if (event.key !== " ") stop();
  KEYS[event.key]();
});

function options(select, names) {
  select.replaceChildren(...names.map(([value, name]) => element("option", { value }, name)));
}

function start() {
  options(get("episode"), DATA.episodes.map((each, index) => [index, `episode ${index + 1}: ${signed(each.score)}${mistakes(each).length ? `, ${mistakes(each).length} wrong` : ""}`]));
  get("episode").addEventListener("change", (event) => choose(Number(event.target.value)));
  get("shaded").textContent = DATA.plan ? `shaded: ${DATA.plan.rooms[0]}` : "";
  get("above").hidden = !DATA.plan;
  const known = DATA.episodes[0].layers;
  const named = DATA.episodes[0].situations?.some((each) => Object.values(each).some(Array.isArray)) ? " the places that the environment names," : "";
  if (known.length) {
    // Only slots that hold the same steps in all layers have a mean: routed slots do not.
    const alike = DATA.episodes.every(({ layers }) => layers.every((layer) => layer.steps === layers[0].steps));
    options(get("layer"), [...(alike && known.length > 1 ? [[MEAN, "mean of all"]] : []), ...known.map((_, index) => [index, `${index + 1}`])]);
    options(get("head"), [...(known[0].heads > 1 ? [[MEAN, "mean of all"]] : []), ...Array.from({ length: known[0].heads }, (_, index) => [index, `${index + 1}`])]);
    get("place").textContent = `From above: the agent, its path,${named} and in colour where it was at the steps it attends to.`;
  } else {
    get("trace").hidden = true;
    get("attention").replaceChildren(element("p", { class: "note" }, DATA.without));
    get("place").textContent = `From above: the agent${named && ","}${named} and its path.`;
  }
  for (const name of ["layer", "head"]) get(name)?.addEventListener("change", () => go(step));
  get("slider").addEventListener("input", (event) => { stop(); go(Number(event.target.value)); });
  get("play").addEventListener("click", play);
  get("speed").addEventListener("change", () => { if (timer !== null) { stop(); play(); } });
  for (const [name, act] of [["back", () => go(step - 1)], ["forth", () => go(step + 1)], ["former", formerReward], ["next", nextReward], ["mistake", nextMistake]]) {
    get(name).addEventListener("click", () => { stop(); act(); });
  }
  const at = (event, box) => Math.round(((event.clientX - box.left - INSET) / (box.width - 2 * INSET)) * (episode.values.length - 1));
  for (const name of ["ribbon", "marks"]) {
    get(name).addEventListener("click", (event) => {
      stop();
      go(Number(event.target.dataset.step ?? at(event, get(name).getBoundingClientRect())));
    });
  }
  const again = () => { if (episode) { go(step); mark(); } };
  new ResizeObserver(again).observe(get("time"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  const opened = () => {
    const [, number, at] = location.hash.match(/^#(\d+)\.(\d+)$/) || [0, 1, 0];
    const index = Math.min(DATA.episodes.length, Math.max(1, Number(number))) - 1;
    get("episode").value = index;
    return choose(index, Number(at));
  };
  window.addEventListener("hashchange", opened);
  window.addEventListener("message", lead);
  opened();
}

start();
