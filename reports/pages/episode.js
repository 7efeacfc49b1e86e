// The page of episodes: the view, the path and the facts of the chosen step, and the way to other steps. Reads DATA; see
// `reports/episode.py`.
let episode;
let sheets;
let step = 0;
let timer = null;
let charts = [];
let led = false;
let numChosen = 0;

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + readable(Math.abs(value));
const percent = (value) => {
  if (value > 0 && value < 0.0005) return "< 0.1 %";
  if (value >= 0.995 && value < 1) return `${(Math.floor(1000 * value) / 10).toFixed(1)} %`; // 100 % is all
  return `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %`;
};
const span = (first, last) => (first === last ? `${first}` : `${first}–${last}`);
const inCluster = ({ cluster, group }) =>
  cluster === undefined ? "" : `cluster ${cluster}${group === undefined ? "" : ` of group ${group}`}`;

// A canvas as large as it is shown, in the screen's own pixels; returns its context in CSS pixels.
function prepared(canvas, height) {
  const width = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return [context, width, height];
}

// Draws the view of a step into a box.
function paint(context, at, x, y, width, height) {
  const { columns, rows } = DATA.sheet;
  const each = columns * rows;
  const within = at % each;
  const left = (within % columns) * DATA.sheet.width;
  const top = Math.floor(within / columns) * DATA.sheet.height;
  context.imageSmoothingEnabled = false;
  context.drawImage(sheets[Math.floor(at / each)], left, top, DATA.sheet.width, DATA.sheet.height, x, y, width, height);
}

function image(source) {
  const loaded = new Image();
  loaded.src = source;
  return loaded.decode().then(() => loaded);
}

// Replaces what is packed in an episode by arrays, once.
const unpack = (of) =>
  (of.unpacking ??= (async () => {
    for (const layer of of.layers) {
      layer.weights = await unpacked(layer.weights, Uint8Array);
      layer.steps = await unpacked(layer.steps, Int32Array);
    }
    of.probabilities = await unpacked(of.probabilities, Uint16Array);
    for (const name of of.numbers ? ["received", "means", "scales"] : [])
      of.numbers[name] = await unpacked(of.numbers[name], Float32Array);
    of.drawn = of.drawn && (await unpacked(of.drawn, Uint8Array));
    if (of.effects) of.effects.slots = await unpacked(of.effects.slots, Int16Array);
  })());

async function choose(index, at = 0) {
  stop();
  const number = ++numChosen;
  const chosen = DATA.episodes[index];
  const asked = DATA.episodes.filter(({ choices }) => choices.some(Boolean));
  const [loaded] = await Promise.all([Promise.all(chosen.sheets.map(image)), ...[chosen, ...asked].map(unpack)]);
  if (number !== numChosen) return; // another one was chosen while this one was unpacked
  sheets = loaded;
  episode = chosen;
  get("slider").max = episode.values.length - 1;
  const steps = episode.values.map((_, at) => at);
  for (const name of ["values", "rewards"]) get(name).replaceChildren();
  const shared = {
    inset: { left: AXIS, right: INSET },
    domain: [0, steps.length - 1],
    bands: visits().map(([from, to]) => ({ from, to })),
    pick: (x) => go(Math.round(x)),
  };
  charts = [
    new LineChart(get("values"), [{ name: "value", color: "var(--s0)", x: steps, y: episode.values }], {
      ...shared,
      height: 96,
      label: "value at each step",
      include: [0, 0],
    }),
    new LineChart(
      get("rewards"),
      [{ name: "reward", color: "var(--s6)", x: steps, y: episode.rewards, stems: true }],
      { ...shared, height: 92, label: "reward after each step", include: [0, 0] },
    ),
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

// Where a step is in something of this width, which begins at `left`; and the step that is at a place.
const lastStep = () => Math.max(1, episode.values.length - 1);
const across = (width, at, left = INSET) => left + ((width - left - INSET) * at) / lastStep();
const stepAt = (pixel, width, left = INSET) => Math.round(((pixel - left) / (width - left - INSET)) * lastStep());
const rewarded = () => episode.rewards.flatMap((reward, at) => (reward ? [at] : []));

function mark() {
  const width = get("marks").parentElement.clientWidth;
  const largest = Math.max(...episode.rewards.map(Math.abs));
  get("marks").setAttribute("viewBox", `0 0 ${width} 12`);
  get("marks").replaceChildren(
    ...rewarded().map((at) => {
      const reward = episode.rewards[at];
      const size = 4 + 8 * Math.sqrt(Math.abs(reward) / largest);
      const tick = shape("rect", {
        x: across(width, at) - 1.5,
        y: 12 - size,
        width: 3,
        height: size,
        rx: 1,
        fill: reward > 0 ? "var(--good)" : "var(--bad)",
      });
      tick.dataset.step = at;
      tick.append(shape("title", {}, `step ${at}: reward ${signed(reward)}`));
      return tick;
    }),
    ...mistakes().map((at) => {
      const left = across(width, at);
      const cross = shape("path", { d: `M${left - 4} 2l8 8m0 -8l-8 8`, stroke: "var(--bad)", "stroke-width": 2 });
      cross.dataset.step = at;
      cross.append(shape("title", {}, `step ${at}: wrong choice`));
      return cross;
    }),
  );
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
    ["step", `${step} of ${episode.values.length - 1}`],
    ...told,
    ["action", vector ? briefly(episode, step) : DATA.actions[episode.actions[step]]],
    ["value", signed(episode.values[step])],
    ["score so far", signed(episode.scores[step])],
    ...room,
    ...known,
    ...chosen,
  ];
  if (vector) showColumns(episode, step);
  else probabilities();
  get("here").setAttribute("href", `#${Number(get("episode").value) + 1}.${step}`);
  get("facts").replaceChildren(...rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

// Bars of the actions of a Discrete space.
function probabilities() {
  const count = DATA.actions.length;
  const chances = episode.probabilities.subarray(step * count, (step + 1) * count);
  get("policy").replaceChildren(
    ...DATA.actions.flatMap((name, action) => {
      const taken = action === episode.actions[step] ? { class: "chosen" } : {};
      const share = chanceOf(chances[action]);
      return [
        element("span", taken, name),
        element("i", { style: `width: ${widthOf(share)}%` }),
        element("b", taken, percent(share)),
      ];
    }),
  );
}

// Shows a step. Pages beside this one are told, unless only the size or the colors of the page have changed.
function go(to, tells = true) {
  step = Math.max(0, Math.min(episode.values.length - 1, to));
  document.body.dataset.step = step;
  get("slider").value = step;
  get("slider").setAttribute("aria-valuetext", `step ${step}, value ${signed(episode.values[step])}`);
  const view = get("view");
  const scale = Math.max(1, Math.ceil(768 / DATA.sheet.width));
  view.width = DATA.sheet.width * scale;
  view.height = DATA.sheet.height * scale;
  paint(view.getContext("2d"), step, 0, 0, view.width, view.height);
  if (episode.drawn) redraw();
  name();
  get("value").textContent = signed(episode.values[step]);
  get("reward").textContent = episode.rewards[step] ? signed(episode.rewards[step]) : "none";
  for (const chart of charts) chart.cursor(step);
  facts();
  const memory = episode.layers.length ? remembered() : null;
  follow(memory);
  if (memory) look(memory);
  answer();
  announce();
  if (tells && window.parent !== window && !led) window.parent.postMessage([Number(get("episode").value), step], "*");
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
  get("named").replaceChildren(
    ...(DATA.plan && episode.poses ? inView(episode, step) : []).map((thing) => {
      return element(
        "span",
        {
          style: `left: clamp(3.2em, ${100 * shareOfView(episode, step, thing)}%, calc(100% - 3.2em))`,
          title: thing.words,
        },
        `${thing.name} ▾`,
      );
    }),
  );
}

// The view as the agent redraws it from its core's input.
function redraw() {
  const [height, width] = DATA.drawn;
  const canvas = get("drawn");
  const pixels = new ImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) {
    for (let channel = 0; channel < 3; channel++) {
      pixels.data[4 * pixel + channel] = episode.drawn[(step * width * height + pixel) * 3 + channel];
    }
    pixels.data[4 * pixel + 3] = 255;
  }
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

// The path from above, with the steps that matter at this one; y grows to the left of a player who looks along x.
function follow(memory) {
  if (!DATA.plan || !episode.poses) return;
  const { walls, areas, spots } = DATA.plan;
  const xs = walls.flatMap(([a, , b]) => [a, b]);
  const ys = walls.flatMap(([, a, , b]) => [a, b]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const width = get("map").clientWidth;
  const scale = (width - 16) / (right - left);
  const [context] = prepared(get("map"), (high - low) * scale + 16);
  get("map").style.height = `${(high - low) * scale + 16}px`;
  const point = (x, y) => [8 + (x - left) * scale, 8 + (high - y) * scale];
  for (const [x0, y0, x1, y1] of Object.values(areas)) {
    context.fillStyle = color("line");
    context.fillRect(...point(x0, y1), (x1 - x0) * scale, (y1 - y0) * scale);
  }
  context.strokeStyle = color("faint");
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
  const least = memory?.decided ? SPOKE : 1e-9;
  const smallest = memory?.decided ? FELT : 0.002;
  const largest = Math.max(least, ...(memory?.steps ?? []).map(({ size }) => size));
  for (let at = Math.max(0, step - 400); at <= step; at++) {
    const [x, y] = point(episode.poses[at][0], episode.poses[at][1]);
    const age = step - at;
    context.globalAlpha = Math.max(0.12, 1 - age / 40);
    context.fillStyle = color("faint");
    context.beginPath();
    context.arc(x, y, 1.6, 0, 7);
    context.fill();
    const { size, kind } = memory?.steps[at] ?? { size: 0 };
    if (at < step && size > smallest) {
      context.globalAlpha = 0.75;
      context.fillStyle = color(kind);
      context.beginPath();
      context.arc(x, y, 1.5 + 7 * Math.sqrt(size / largest), 0, 7);
      context.fill();
    }
  }
  context.globalAlpha = 1;
  const [x, y] = point(episode.poses[step][0], episode.poses[step][1]);
  const yaw = (episode.poses[step][2] * Math.PI) / 180;
  context.fillStyle = color("ink");
  context.beginPath();
  context.moveTo(x + 11 * Math.cos(yaw), y - 11 * Math.sin(yaw));
  for (const turn of [2.5, -2.5]) context.lineTo(x + 8 * Math.cos(yaw + turn), y - 8 * Math.sin(yaw + turn));
  context.fill();
  context.font = `600 12px ${getComputedStyle(document.body).fontFamily}`;
  [context.textAlign, context.lineJoin, context.lineWidth, context.strokeStyle] = [
    "center",
    "round",
    3,
    color("paper"),
  ];
  for (const [name, known] of Object.entries(episode.situations?.[step] ?? {})) {
    const [, east, north] = [].concat(known);
    if (!Number.isFinite(east) || !Number.isFinite(north)) continue;
    const [at, down] = point(east, north);
    const half = context.measureText(name).width / 2 + 2;
    context.beginPath();
    context.arc(at, down, 5, 0, 7);
    context.fill();
    const beside = walls
      .filter(([a, b, c, d]) => a === c && (b - north) * (d - north) < 0)
      .map(([a]) => point(a, 0)[0]);
    const middle = Math.max(
      half + Math.max(0, ...beside.filter((wall) => wall < at)),
      Math.min(Math.min(width, ...beside.filter((wall) => wall > at)) - half, at),
    );
    for (const draw of ["strokeText", "fillText"]) context[draw](name, middle, down < 22 ? down + 18 : down - 9);
  }
}

function stop() {
  clearInterval(timer);
  timer = null;
  get("play").textContent = "Play";
  get("play").setAttribute("aria-pressed", "false");
  if (episode) answer();
}

function play() {
  if (timer !== null) return stop();
  if (step === episode.values.length - 1) go(0);
  get("play").textContent = "Pause";
  get("play").setAttribute("aria-pressed", "true");
  timer = setInterval(
    () => {
      go(step + 1);
      if (step === episode.values.length - 1) stop();
    },
    1000 / (DATA.fps * Number(get("speed").value)),
  );
}

const mistakes = (of = episode) => of.choices.flatMap((choice, at) => (choice < 0 ? [at] : []));

// [episode, step] of the next wrong choice, of this episode or of the next one that has any; none if none has.
function laterMistake() {
  const later = mistakes().find((at) => at > step);
  const count = DATA.episodes.length;
  const here = Number(get("episode").value);
  if (later !== undefined) return [here, later];
  const index = Array.from({ length: count }, (_, each) => (here + 1 + each) % count).find(
    (each) => mistakes(DATA.episodes[each]).length,
  );
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
  const [index] = laterMistake();
  const elsewhere = index !== undefined && index !== Number(get("episode").value);
  get("mistake").disabled = index === undefined;
  get("mistake").textContent =
    index === undefined ? "no mistake" : `next mistake${elsewhere ? ` (in episode ${index + 1})` : ""}`;
}

const nextReward = () => go(rewarded().find((at) => at > step) ?? step);
const formerReward = () =>
  go(
    rewarded()
      .reverse()
      .find((at) => at < step) ?? step,
  );
const KEYS = {
  ArrowLeft: () => go(step - 1),
  ArrowRight: () => go(step + 1),
  Home: () => go(0),
  End: () => go(episode.values.length - 1),
  n: nextReward,
  p: formerReward,
  m: nextMistake,
  " ": play,
};

document.addEventListener("keydown", (event) => {
  if (!(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
  const on = event.target.tagName;
  if (on === "SELECT" || (["BUTTON", "SUMMARY"].includes(on) && event.key === " ")) return;
  event.preventDefault();
  if (event.key !== " ") stop();
  KEYS[event.key]();
});

// [episode, step] in the address of the page; undefined if there is none.
function addressed() {
  const [, number, at] = location.hash.match(/^#(\d+)\.(\d+)$/) ?? [];
  if (number === undefined) return undefined;
  const index = Math.min(DATA.episodes.length, Math.max(1, Number(number))) - 1;
  return [index, Number(at)];
}

// [episode, step] at which the page opens: the first mistake, else a choice, else the middle. Pages beside each other
// begin together.
function beginning() {
  if (window.parent !== window) return [0, 0];
  const first = (wanted) => {
    for (const [index, { choices }] of DATA.episodes.entries()) {
      const at = choices.findIndex(wanted);
      if (at >= 0) return [index, at];
    }
    return undefined;
  };
  return (
    first((choice) => choice < 0) ??
    first((choice) => choice > 0) ?? [0, Math.floor(DATA.episodes[0].values.length / 2)]
  );
}

function options(select, names) {
  select.replaceChildren(...names.map(([value, name]) => element("option", { value }, name)));
}

function start() {
  get("watch").style.setProperty("--ratio", DATA.sheet.width / DATA.sheet.height);
  options(
    get("episode"),
    DATA.episodes.map((each, index) => [
      index,
      `episode ${index + 1}: ${signed(each.score)}${mistakes(each).length ? `, ${mistakes(each).length} wrong` : ""}`,
    ]),
  );
  get("episode").addEventListener("change", (event) => choose(Number(event.target.value)));
  get("shaded").textContent = DATA.plan ? `shaded: ${DATA.plan.rooms[0]}` : "";
  get("above").hidden = !DATA.plan;
  const known = DATA.episodes[0].layers;
  const named = DATA.episodes[0].situations?.some((each) => Object.values(each).some(Array.isArray))
    ? " the places that the environment names,"
    : "";
  if (known.length) {
    // Only slots that hold the same steps in all layers have a mean: routed slots do not.
    const alike = DATA.episodes.every(({ layers }) => layers.every((layer) => layer.steps === layers[0].steps));
    options(get("layer"), [
      ...(alike && known.length > 1 ? [[MEAN, "mean of all"]] : []),
      ...known.map((_, index) => [index, `${index + 1}`]),
    ]);
    options(get("head"), [
      ...(known[0].heads > 1 ? [[MEAN, "mean of all"]] : []),
      ...Array.from({ length: known[0].heads }, (_, index) => [index, `${index + 1}`]),
    ]);
    get("place").textContent =
      `From above: the agent, its path,${named} and in color where it was at the earlier steps that matter at this one.`;
    get("showing").hidden = !DATA.episodes[0].effects;
  } else {
    get("memory").replaceChildren(element("p", { class: "note" }, DATA.without));
    get("place").textContent = `From above: the agent${named && ","}${named} and its path.`;
  }
  for (const name of ["show", "layer", "head"]) get(name)?.addEventListener("change", () => go(step));
  get("slider").addEventListener("input", (event) => {
    stop();
    go(Number(event.target.value));
  });
  get("play").addEventListener("click", play);
  get("speed").addEventListener("change", () => {
    if (timer !== null) {
      stop();
      play();
    }
  });
  for (const [name, act] of [
    ["back", () => go(step - 1)],
    ["forth", () => go(step + 1)],
    ["former", formerReward],
    ["next", nextReward],
    ["mistake", nextMistake],
  ]) {
    get(name).addEventListener("click", () => {
      stop();
      act();
    });
  }
  for (const [name, left] of [
    ["ribbon", AXIS],
    ["marks", INSET],
  ]) {
    get(name)?.addEventListener("click", (event) => {
      stop();
      const box = get(name).getBoundingClientRect();
      go(Number(event.target.dataset.step ?? stepAt(event.clientX - box.left, box.width, left)));
    });
  }
  const again = () => {
    if (episode) {
      go(step, false);
      mark();
    }
  };
  new ResizeObserver(again).observe(document.querySelector(".stage"));
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  const opened = () => {
    const [index, at] = addressed() ?? beginning();
    get("episode").value = index;
    return choose(index, at);
  };
  window.addEventListener("hashchange", opened);
  window.addEventListener("message", lead);
  opened();
}

start();
