// What an agent remembers at a step: the earlier steps that decided its action, or those that it attended to.
// Included by `episode.html` before `episode.js`. Causes are found by `actors/causes.py`.
const NAMES = { routed: "routed memory", compressed: "compressed memory", memory: "memory", segment: "segment" };
const MEANS = {
  segment: (count) => `the present step and up to ${count - 1} before it, one in a slot`,
  memory: (count) => `the ${count} steps before the segment, one in a slot`,
  compressed: (count, rate) =>
    `${count} slots of still older steps, each a learned summary of ${rate === 1 ? "one step" : `${rate} steps (compression rate ${rate})`}`,
  routed: (count) => `${count} slots of steps of any age, of which a step sees those in the cluster of its own content`,
};
const MEAN = "mean";
const SHOWN = 12; // pictures of slots
const LARGEST = 104; // height of the largest picture
const WIDEST = 208; // and its width at most
const SMALLEST = 22; // height of the smallest
const INSET = 8; // pixels on both sides of what has the steps of the episode as its width
const AXIS = 48; // the same left of the charts, where their labels stand, and of the ribbon above them
const DECIDED = Math.log(10); // by how much the log-odds of an action fall without what decided it
const SPOKE = Math.log(2); // without what spoke for it
const FELT = 0.05; // smaller changes count as none
const ALONE = 0.8; // share of the effect of a stretch

// Whether the page shows causes, and not attention.
const showsCauses = (of = episode) => Boolean(of.effects) && get("show").value === "causes";

// The filled slots of a layer at a step: their index, kind, first and last step, and the cluster of routed ones.
function slotsOf(of, layer, at) {
  const { slots, steps, sizes, rings } = layer;
  const found = [];
  for (let index = 0; index < slots; index++) {
    const first = steps[2 * (at * slots + index)];
    const last = steps[2 * (at * slots + index) + 1];
    if (first < 0) continue;
    let kind = of.kinds[2];
    if (index < sizes[0]) kind = of.kinds[0];
    else if (index < sizes[0] + sizes[1]) kind = of.kinds[1];
    const slot = { index, kind, first, last };
    if (rings && index < sizes[0]) {
      // group by group, and in each cluster by cluster
      const ring = Math.floor(index / rings.window);
      slot.cluster = (ring % rings.clusters) + 1;
      if (rings.groups > 1) slot.group = Math.floor(ring / rings.clusters) + 1;
    }
    found.push(slot);
  }
  return found;
}

// The filled slots at a step with the share of attention on each, by the layer and head that the menus choose.
function attention(at, of = episode) {
  const choice = get("layer").value;
  const head = get("head").value;
  const chosen = choice === MEAN ? of.layers : [of.layers[Number(choice)]];
  const { heads, slots } = chosen[0];
  const weights = new Float64Array(slots);
  let total = 0;
  for (const layer of chosen) {
    for (let index = 0; index < heads; index++) {
      if (head !== MEAN && Number(head) !== index) continue;
      const offset = (at * heads + index) * slots;
      for (let slot = 0; slot < slots; slot++) {
        const weight = (layer.weights[offset + slot] / 255) ** 2; // stored as square roots
        weights[slot] += weight;
        total += weight;
      }
    }
  }
  return slotsOf(of, chosen[0], at).map((slot) => ({ ...slot, weight: weights[slot.index] / total }));
}

// The filled slots at a step, but for that of the step itself, with `fall`: by how much the log-odds of the action would
// fall without the slot's steps in memory.
function causes(at, of = episode) {
  const [layer] = of.layers;
  const earlier = slotsOf(of, layer, at).filter(({ last }) => last < at);
  return earlier.map((slot) => ({ ...slot, fall: of.effects.slots[at * layer.slots + slot.index] / 1000 }));
}

// The steps of a memory without which the odds of an action would fall most; undefined if nothing was remembered. That is
// a stretch of several steps, unless one slot of it alone accounts for most of its effect.
function causeOf(of, at) {
  const [first, last] = of.effects?.stretches[at] ?? [-1];
  const fall = of.effects?.of_stretches[at];
  if (first < 0 || !Number.isFinite(fall)) return undefined;
  const alone = causes(at, of).find((slot) => slot.first >= first && slot.last <= last && slot.fall >= ALONE * fall);
  return alone && fall >= SPOKE ? alone : { first, last, fall };
}

const MOST = 1e6; // larger changes are not told apart
const factor = (fall) => Math.exp(Math.abs(fall));
const times = (fall) => readable(Number(factor(fall).toPrecision(2)));

// What the odds of an action would be without a part of memory, if their logarithm fell by so much.
function oddsWithout(fall) {
  if (Math.abs(fall) < FELT) return "the same";
  if (factor(fall) > MOST)
    return fall > 0 ? "less than a millionth of what they are" : "more than a million times as high";
  return fall > 0 ? `1/${times(fall)} of what they are` : `${times(fall)} times as high`;
}

// The same in the space of a label.
function oddsChange(fall) {
  if (Math.abs(fall) < FELT) return "same";
  return `${fall > 0 ? "÷" : "×"} ${factor(fall) > MOST ? "> 1 M" : times(fall)}`;
}

const stepsOf = ({ first, last }) => (first === last ? `step ${first}` : `steps ${first} to ${last}`);
const capital = (text) => text[0].toUpperCase() + text.slice(1);

// What memory did for the action of a step, in a sentence.
function whatDecided(of, at) {
  let because = causeOf(of, at);
  if (!because) return "There is nothing to remember yet.";

  // Where little speaks for the action, a slot may speak against it more.
  const [against] = causes(at, of).sort((a, b) => a.fall - b.fall);
  if (because.fall < SPOKE && against && -against.fall > because.fall) because = against;

  const { fall } = because;
  const size = Math.abs(fall);
  const isOne = because.first === because.last;
  if (size < FELT)
    return "Memory made no difference to this action: its odds would not be lower whichever steps are left out, up to eight at a time.";
  if (size < SPOKE)
    return `Memory made little difference to this action: without ${stepsOf(because)}, which matter${isOne ? "s" : ""} most, its odds would be ${oddsWithout(fall)}.`;
  let verb = "spoke against";
  if (fall > 0) verb = fall < DECIDED ? "spoke for" : "decided";
  return `${capital(stepsOf(because))} ${verb} this action: without ${isOne ? "it" : "them"} in memory its odds would be ${oddsWithout(fall)}.`;
}

// How much attention goes to the latest stay in the room where what must be remembered is shown, in a sentence.
function whereItLooked(slots) {
  const visit = visits()
    .filter(([first]) => first <= step)
    .pop();
  if (!visit) return "";
  const [weight, equal] = sharesOf(slots, visit);
  return `${percent(weight)} of the attention goes to the latest stay in the ${DATA.plan.rooms[0]}, steps ${span(...visit)}. If all slots had the same weight, it would be ${percent(equal)}.`;
}

// How often attention points at what decided.
function agreement() {
  const { agree, of, steps } = DATA.agreement ?? {};
  if (!of) return "";
  return `Attention is not what decided: at ${of} steps of this page the odds of the action would fall to a tenth or less without some ${steps} steps, and at ${agree} of them the earlier step that got most attention is among these.`;
}

// The memory of the present step: its slots with their `size`, which is how much they decided or were attended to, and
// the same by step of the episode.
function remembered() {
  const decided = showsCauses();
  const slots = decided ? causes(step) : attention(step);
  const sized = slots.map((slot) => ({ ...slot, size: decided ? Math.abs(slot.fall) : slot.weight }));
  return { decided, slots: sized, steps: byStep(sized) };
}

// Shows the memory of the present step.
function look({ decided, slots, steps }) {
  for (const label of document.querySelectorAll(".of-attention")) label.hidden = decided;
  get("said").textContent = decided ? whatDecided(episode, step) : whereItLooked(slots);
  get("traced").textContent = decided
    ? "how much each earlier step speaks for (up) or against (down) the action"
    : "attention of this step to the steps before it (square root)";
  ribbon(steps, decided);
  pictures(slots, decided);
  kinds(slots, decided);
  get("rings").replaceChildren(...(decided ? [] : clusters(slots)).map((text) => element("div", {}, text)));
  explain(slots, decided);
}

// What each step of the episode is to the present one: its size, the kind of its slot, and whether it spoke against the
// action. The attention to a slot of several steps is divided equally among them; the effect is that of all together.
function byStep(slots) {
  const found = episode.values.map(() => ({ size: 0, kind: "segment", against: false }));
  for (const { kind, first, last, size, fall } of slots) {
    const each = fall === undefined ? size / (last - first + 1) : size;
    for (let at = first; at <= last; at++) found[at] = { kind, size: found[at].size + each, against: fall < 0 };
  }
  return found;
}

// The memory of the present step over the episode, as bars.
function ribbon(steps, decided) {
  const [context, width, height] = prepared(get("ribbon"), 60);
  const place = (at) => across(width, at, AXIS);
  const bar = Math.max(1.5, (width - AXIS - INSET) / steps.length - 1);
  const zero = decided ? Math.round(height * 0.7) : height - 1;
  const room = zero - 8;
  const scaled = decided ? (size) => size : Math.sqrt;
  const most = Math.max(decided ? SPOKE : 0, scaled(Math.max(...steps.map(({ size }) => size))), 1e-9);
  context.fillStyle = color("band");
  for (const [first, last] of visits()) context.fillRect(place(first), 0, place(last) - place(first), height);
  steps.forEach(({ size, kind, against }, at) => {
    if (!size || (decided && size < FELT)) return;
    const tall = Math.max(1.5, (room * scaled(size)) / most);
    const shown = against ? Math.min(tall, height - zero) : tall;
    context.fillStyle = color(kind);
    context.globalAlpha = against ? 0.55 : 1;
    context.fillRect(place(at) - bar / 2, against ? zero : zero - shown, bar, shown);
  });
  context.globalAlpha = 1;
  const because = decided ? causeOf(episode, step) : undefined;
  if (because && because.fall >= SPOKE) {
    // the steps that decided, together
    const left = place(because.first) - bar / 2 - 1;
    context.fillStyle = color("ink");
    context.fillRect(left, 1, place(because.last) + bar / 2 + 1 - left, 3);
  }
  context.fillStyle = color("line");
  context.fillRect(AXIS, zero, width - AXIS - INSET, 1);
  context.fillStyle = color("ink");
  context.fillRect(place(step) - 0.75, 0, 1.5, height);
}

// The slots that matter most, as pictures, in the order of their steps.
function pictures(slots, decided) {
  const largest = Math.max(decided ? SPOKE : 0, ...slots.map(({ size }) => size));
  const mattering = slots.filter(({ size }) => !decided || size >= FELT);
  const best = mattering
    .sort((a, b) => b.size - a.size)
    .slice(0, SHOWN)
    .sort((a, b) => a.first - b.first);
  get("strip").replaceChildren(...best.map((slot) => thumbnail(slot, largest)));
  const rest = slots.length - best.length;
  let said = "";
  if (decided && slots.length) {
    said = best.length
      ? "Under each picture: the odds of the action if its steps were not in memory. Dashed: these steps spoke against it."
      : "No single slot changes the odds by more than 5 %.";
  } else if (rest > 0) {
    const left = 1 - best.reduce((sum, slot) => sum + slot.weight, 0);
    said = `The other ${rest} slots together: ${percent(Math.max(0, left))}.`;
  }
  get("rest").textContent = said;
}

// The kinds of memory: a bar of their shares of attention, or the odds without each.
function kinds(slots, decided) {
  const present = episode.kinds.filter((_, index) => episode.layers.some((layer) => layer.sizes[index]));
  const share = (kind) => slots.reduce((sum, slot) => sum + (slot.kind === kind ? slot.weight : 0), 0);
  const bar = (kind) => element("span", { style: `width: ${100 * share(kind)}%; background: var(--${kind})` });
  get("kinds").replaceChildren(...(decided ? [] : present.map(bar)));
  const told = decided
    ? (kind) => oddsChange(episode.effects.kinds[step][episode.kinds.indexOf(kind)])
    : (kind) => percent(share(kind));
  const shown = decided && !slots.length ? [] : present;
  get("shares").replaceChildren(
    ...shown.map((kind) => {
      const earlier = decided && kind === "segment" ? "earlier steps of the " : "";
      const node = element("span");
      node.append(
        element("i", { style: `color: var(--${kind})` }),
        `${decided ? "odds without " : ""}${earlier}${NAMES[kind]} `,
        element("b", {}, told(kind)),
      );
      return node;
    }),
  );
}

// What the words of the section mean.
function explain(slots, decided) {
  const chosen = decided || get("layer").value === MEAN ? 0 : Number(get("layer").value);
  const { sizes, rate } = episode.layers[chosen];
  const described = episode.kinds
    .flatMap((kind, index) => {
      if (!sizes[index]) return [];
      const empty = slots.some((slot) => slot.kind === kind) || (decided && kind === "segment") ? "" : "; empty so far";
      return [`${capital(NAMES[kind])}: ${MEANS[kind](sizes[index], rate)}${empty}.`];
    })
    .reverse()
    .join(" ");
  const method = episode.effects
    ? "What decided an action is found by leaving parts of memory out, one at a time and up to eight steps together, and computing the policy again. Odds are the probability of the action over that of all others."
    : "";
  get("means").replaceChildren(
    ...[described, method, agreement()].filter(Boolean).map((text) => element("p", {}, text)),
  );
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
    return [
      `${percent(weight)} goes to ${name}, which holds ${ring.length > 1 ? "steps" : "step"} ${runs.map(([from, to]) => span(from, to)).join(", ")}.`,
    ];
  });
}

// One slot: its frames side by side, in a picture whose area is its size; a button that goes to its first step.
function thumbnail(slot, largest) {
  const { kind, first, last, weight, fall, size } = slot;
  const cluster = inCluster(slot);
  const count = last - first + 1;
  const columns = Math.ceil(Math.sqrt(count));
  const rows = Math.ceil(count / columns);
  const widest = get("strip").clientWidth - 2 * INSET;
  const most = (widest * DATA.sheet.height) / DATA.sheet.width;
  const tall = Math.min(LARGEST, (WIDEST * DATA.sheet.height) / DATA.sheet.width); // the largest one's
  const height = Math.min(most, tall * Math.max(SMALLEST / LARGEST, Math.sqrt(size / largest)));
  const width = (height * DATA.sheet.width) / DATA.sheet.height;
  const canvas = element("canvas", { "aria-hidden": "true" });
  const ratio = window.devicePixelRatio || 1;
  const [wide, high] = [Math.round((width * ratio) / columns), Math.round((height * ratio) / columns)];
  canvas.width = wide * columns;
  canvas.height = high * rows;
  canvas.style.width = `${canvas.width / ratio}px`;
  canvas.style.height = `${canvas.height / ratio}px`;
  const context = canvas.getContext("2d");
  const gap = count > 1 ? 1 : 0;
  for (let index = 0; index < count; index++) {
    paint(context, first + index, (index % columns) * wide, Math.floor(index / columns) * high, wide - gap, high - gap);
  }

  const is =
    weight === undefined
      ? `without it the odds of the action would be ${oddsWithout(fall)}`
      : `${percent(weight)} of the attention`;
  const told = weight === undefined ? oddsChange(fall) : percent(weight);
  const name = last === step && first === step ? "now" : span(first, last);
  const button = element("button", {
    class: fall < 0 ? "slot against" : "slot",
    style: `border-bottom-color: var(--${kind})`,
    title: `${NAMES[kind]}${cluster && `, ${cluster}`}, step ${span(first, last)}: ${is}. Go there`,
    "data-kind": kind,
    "data-first": first,
    "data-last": last,
    "data-size": size.toFixed(4),
    "data-cluster": cluster,
  });
  button.append(canvas, element("b", {}, told), element("span", {}, name));
  if (cluster) button.append(element("br"), element("span", {}, cluster));
  button.addEventListener("click", () => go(first));
  return button;
}
