// A choice: whether the memory of the example decided it, and its numbers beside those of correct choices of the page;
// included by `episode.html` before `episode.js`.
const RARE = 0.2; // a number is unusual if at most this share of the correct choices is as far out, on either side
const FEW = 9; // with fewer correct choices nothing is called unusual
const TIMES = 100; // memory made little difference if actions are less than so many times as likely with one example
const APART = "how far apart the two objects would be in memory (1: as two steps of the episode)";
const VALUE = "value on entering this room";
const SEEN = "steps with the example in view";
const READ = "attention to these steps at the step that changed it most (1: as with equal weights)";
const LED = "led";
const NONE = "none";
const AGAINST = "against";
const compared = new Map(); // all choices with their numbers, by layer and head

// The share of the attention that goes to the steps from one to another, and what it would be if all slots had the same.
function sharesOf(slots, [from, to]) {
  const within = ({ first, last }) => Math.max(0, Math.min(last, to) - Math.max(first, from) + 1) / (last - first + 1);
  return [
    slots.reduce((sum, slot) => sum + slot.weight * within(slot), 0),
    slots.reduce((sum, slot) => sum + within(slot), 0) / slots.length,
  ];
}

// What the environment names at a step and says where it is: [{name, words, thing, x, y}].
const located = (of, at) =>
  Object.entries(of.situations?.[at] ?? {})
    .map(([name, known]) => {
      const [words, x, y] = [].concat(known);
      return { name, words, thing: words.split(", ")[0], x, y };
    })
    .filter(({ words, x }) => words.includes(", ") && Number.isFinite(x));

// How far a place is to the left of the direction of view at a step, in degrees from -180 to 180.
const wrapped = (angle) => (((angle % 360) + 540) % 360) - 180;
function bearing(of, at, { x, y }) {
  const [east, north, yaw] = of.poses[at];
  return wrapped((180 / Math.PI) * Math.atan2(y - north, x - east) - yaw);
}

const inView = (of, at) =>
  located(of, at).filter((thing) => Math.abs(bearing(of, at, thing)) <= (DATA.plan?.view ?? 360) / 2);

// What preceded a choice: when its room was entered; the stay before in the first room and its steps with something in
// view; of two things which one it took; and how many times as likely its actions in the room were as they would have
// been with the other example, as a logarithm (undefined if unknown), with the step that decided most of it.
function before(of, at) {
  const placed = of.poses && DATA.plan;
  const stay = placed
    ? visits(of)
        .filter(([first]) => first <= at)
        .pop()
    : undefined;
  let entered = of.entered?.[at] ?? -1; // of this choice: in one room there may be several
  if (entered < 0) for (entered = at; placed && entered > 0 && of.poses[entered - 1][3] === of.poses[at][3];) entered--;
  const seen =
    stay && of.situations
      ? of.poses
          .map((_, when) => when)
          .slice(stay[0], Math.min(stay[1], at) + 1)
          .filter((when) => inView(of, when).length)
      : undefined;
  const things = placed ? located(of, at) : [];
  const far = ({ x, y }) => Math.hypot(x - of.poses[at][0], y - of.poses[at][1]);
  const terms = of.evidence?.slice(entered, at + 1).filter((term) => term !== null) ?? [];
  const total = terms.length ? terms.reduce((sum, term) => sum + term, 0) : undefined;
  const sizes =
    total !== undefined && verdict(total) !== NONE ? terms.map((term) => term * Math.sign(total)) : terms.map(Math.abs);
  const decided = total === undefined ? entered : entered + sizes.indexOf(Math.max(...sizes));
  if (things.length !== 2) return { entered, stay, seen, terms, total, decided };
  const [took, left] = things.sort((a, b) => far(a) - far(b));
  const alike = took.thing
    .split(" ")
    .filter((word) => left.thing.split(" ").includes(word))
    .join(" ");
  return { entered, stay, seen, terms, total, decided, took, left, alike };
}

// Whether its memory of the example led an agent to what it took, made little difference, or spoke against it.
const verdict = (total) => (total > Math.log(TIMES) ? LED : total < -Math.log(TIMES) ? AGAINST : NONE);

// [name, number, its text] of a choice, by the layer and head that the menus choose.
function numbers(of, at) {
  const { entered, stay, seen, decided, total } = before(of, at);
  const found = [["value before the choice", of.values[at] ?? NaN, signed]];
  if (of.poses && DATA.plan) found.push([VALUE, of.values[entered] ?? NaN, signed]);
  if (!DATA.columns?.length)
    found.push([
      "probability of the last action",
      chanceOf(of.probabilities[at * DATA.actions.length + of.actions[at]]),
      percent,
    ]);
  if (stay) found.push([`steps since the ${DATA.plan.rooms[0]}`, at - stay[1], readable]);
  if (seen) found.push([SEEN, seen.length, readable]);
  if (total !== undefined && of.apart) found.push([APART, of.apart[at] ?? NaN, readable]);
  if (!of.layers.length) return found;
  const slots = attention(at, of);
  if (seen?.length && total !== undefined) {
    const then = attention(decided, of);
    const parts = seen.map((when) => sharesOf(then, [when, when]));
    found.push([
      READ,
      parts.reduce((sum, [share]) => sum + share, 0) / parts.reduce((sum, [, equal]) => sum + equal, 0),
      readable,
    ]);
  }
  if (stay) {
    const [share, equal] = sharesOf(slots, stay);
    const name = `attention at the choice to the latest stay in the ${DATA.plan.rooms[0]}`;
    found.push([name, share, percent], [`${name} (1: as with equal weights)`, share / equal, readable]);
  }
  of.kinds.forEach((kind, index) => {
    if (!of.layers.some(({ sizes }) => sizes[index]) || !slots.some((slot) => slot.kind === kind)) return; // empty so far
    found.push([
      `attention to ${kind === "segment" ? "the " : ""}${NAMES[kind]}`,
      slots.reduce((sum, slot) => sum + (slot.kind === kind ? slot.weight : 0), 0),
      percent,
    ]);
  });
  return found;
}

// All choices of the page, each with its numbers by the layer and head that the menus choose.
function everyChoice() {
  const menus = `${get("layer")?.value} ${get("head")?.value}`;
  if (!compared.has(menus)) {
    compared.set(
      menus,
      DATA.episodes.flatMap((each) =>
        each.choices.flatMap((choice, when) =>
          choice ? [{ each, when, right: choice > 0, known: new Map(numbers(each, when)), ...before(each, when) }] : [],
        ),
      ),
    );
  }
  return compared.get(menus);
}

// How far out a number is among sorted ones: [how many are as low, how many are as high, whether it is unusual].
function rank(number, known) {
  const lower = known.filter((each) => each <= number).length;
  const higher = known.filter((each) => each >= number).length;
  return [
    lower,
    higher,
    Number.isFinite(number) && known.length >= FEW && (2 * (Math.min(lower, higher) + 1)) / (known.length + 1) <= RARE,
  ];
}

// A quantile of sorted numbers, linear between them.
function quantile(sorted, share) {
  const at = share * (sorted.length - 1);
  const low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.ceil(at)] - sorted[low]);
}

// A likelihood ratio as people read it, given its logarithm.
function ratio(total) {
  const size = Math.abs(total);
  const whole = (number) => readable(Number(number.toPrecision(2)));
  if (size > Math.log(1e6)) return total > 0 ? "more than a million" : "less than a millionth";
  return total <= -Math.log(TIMES) ? `1/${whole(Math.exp(size))}` : whole(Math.exp(total));
}

// Whether memory hardly told the two examples of a choice apart: their distance is in the lowest quarter of those at
// correct choices. Undefined if there are too few of these.
const blurred = ([low, , , count] = []) => (count >= FEW ? low <= count / 4 : undefined);

// Of the steps in a room the one whose action depends most on steps before the room; undefined if none does.
function earlierCause(of, entered, at) {
  let found;
  for (let when = entered; when <= at; when++) {
    const because = causeOf(of, when);
    if (because && because.last < entered && because.fall >= Math.max(SPOKE, found?.fall ?? 0))
      found = { ...because, when };
  }
  return found;
}

// Why memory made little difference, in a sentence.
function whyNone(ranks) {
  const [, high, , count, [number, median] = []] = ranks.get(APART) ?? [];
  const fails = blurred(ranks.get(APART));
  if (fails === undefined)
    return "It did not know or did not use which object it had seen; with so few correct choices to compare, the page cannot say which.";
  const far = `with the other object as the example, what entered its memory would have been ${readable(number)} away from what it was, at correct choices typically ${readable(median)}`;
  return fails
    ? `Probably it never told the two apart: ${far}; it was more at ${high} of ${count} correct choices.`
    : `It told the two apart when it saw the example, and made no use of it: ${far}.`;
}

// A choice in a few words, and what happened and why in a few sentences.
function headline(known, right, of, at, ranks) {
  const { total, entered, took, left } = known;
  const is = right ? "Right" : "Wrong";
  const what = took ? `It took the ${took.thing} (${took.name}), not the ${left.thing} (${left.name}). ` : "";
  if (total === undefined) return [`${is} choice`, what.trim()];
  const bar = `${TIMES} or more ${verdict(total) === LED ? "means" : "would mean"} that memory decided`;
  const times = ratio(Math.abs(total));
  const supposed = {
    [LED]: `With the other object as the example, its actions in this room would have been ${times} times less likely (${bar}).`,
    [NONE]: `With the other object as the example, it would have done much the same (likelihood ratio ${ratio(total)}; ${bar}).`,
    [AGAINST]: `With the other object as the example, its actions in this room would have been ${times} times more likely.`,
  }[verdict(total)];
  if (verdict(total) === NONE)
    return [`${is}: a ${right ? "lucky " : ""}guess`, `${what}${supposed} ${whyNone(ranks)}`];
  if (verdict(total) === AGAINST) {
    const sampled = right
      ? ""
      : " It knew which object it had seen, and the actions drawn from its probabilities led elsewhere.";
    return [`${is}, against its memory`, `${what}${supposed}${sampled}`];
  }
  const mistaken = right ? "" : " So it seems to have mistaken the example for the other object.";
  const because = earlierCause(of, entered, at);
  const from = because
    ? ` Its action at step ${because.when} came from ${stepsOf(because)}: without them in memory its odds would be ${oddsWithout(because.fall)}.`
    : "";
  return [right ? "Right: memory decided" : "Wrong: memory misled it", `${what}${supposed}${mistaken}${from}`];
}

// The verdicts on all choices of the page, in a sentence.
function verdicts() {
  const known = everyChoice().filter((one) => one.total !== undefined);
  if (!known.length) return "";
  const counts = [false, true].flatMap((is) => {
    const those = known.filter((one) => one.right === is);
    const of = (name) => those.filter((one) => verdict(one.total) === name).length;
    return those.length
      ? [
          `of ${those.length} ${is ? "right" : "wrong"} one${those.length === 1 ? "" : "s"} it ${is ? "led" : "misled"} ${of(LED)}, made little difference in ${of(NONE)} and spoke against ${of(AGAINST)}`,
        ]
      : [];
  });
  const [guesses, others] = [true, false].map((is) =>
    known.filter((one) => (verdict(one.total) === NONE) === is).map((one) => blurred(rankOf(one, APART))),
  );
  const share = (those) => `${those.filter(Boolean).length} of ${those.length}`;
  const why =
    guesses.length && !guesses.concat(others).includes(undefined)
      ? ` In ${share(guesses)} guesses, and in ${share(others)} choices that memory decided, the two objects were closer in memory than in three quarters of the correct choices.`
      : "";
  return `Memory in all choices of this page: ${counts.join("; ")}.${why} Likelihood ratios between 1/${TIMES} and ${TIMES}, which a few chance actions can make, count as little difference.`;
}

// The rank of a choice's number among those of the other correct choices, as `rank` has it, with how many they are.
function rankOf({ each, when, known }, name) {
  const others = usual(each, when)
    .map((other) => other.known.get(name))
    .filter(Number.isFinite)
    .sort((a, b) => a - b);
  return [...rank(known.get(name), others), others.length, [known.get(name), quantile(others, 0.5)]];
}

// The correct choices of the page but for one.
const usual = (each, when) => everyChoice().filter((one) => one.right && !(one.each === each && one.when === when));

// What happened before a choice and what memory held, in sentences.
function story(of, at, ranks) {
  const { entered, stay, seen, took, left, alike, decided, total } = before(of, at);
  const right = of.choices[at] > 0;
  const parts = [];
  if (took) parts.push(`It took the ${took.words} (${took.name}), not the ${left.words} (${left.name})`);
  if (total !== undefined && verdict(total) !== NONE)
    parts.push(`The step that changed the verdict most is ${decided}, ${decided - entered} after entering this room`);
  if (seen) {
    const example = DATA.plan.rooms[0].replace(/^room of /, "");
    parts.push(
      `In the ${DATA.plan.rooms[0]}, ${seen.length || "none"} of the ${stay[1] - stay[0] + 1} steps of the latest stay (${span(...stay)}) had ${example} in view`,
    );
  }
  if (seen?.length && of.layers.length) {
    const slots = attention(decided, of);
    const held = seen.filter((when) => slots.some(({ first, last }) => first <= when && when <= last));
    parts.push(
      `${held.length === seen.length ? "All" : held.length || "None"} of them were in memory at step ${decided}`,
    );
  }
  const [low, high, rare, count] = ranks.get(VALUE) ?? [];
  if (!right && rare && low < high)
    parts.push(`On entering this room the agent already expected less than at ${high} of ${count} correct choices`);
  if (!right && alike) {
    const rate = (those) => `${those.filter((one) => !one.right).length} of ${those.length}`;
    const [these, others] = [true, false].map((is) => everyChoice().filter((one) => Boolean(one.alike) === is));
    parts.push(
      `The two are alike ("${alike}")${others.length ? `: of choices between such things, ${rate(these)} on this page were wrong, of the others ${rate(others)}` : ""}`,
    );
  }
  return [parts.length ? `${parts.join(". ")}.` : "", verdicts()].filter(Boolean);
}

// Of some steps the one at which a thing is seen best: near, and not at the edge of the view.
function bestView(of, steps, thing) {
  const off = (when) => Math.abs(bearing(of, when, thing));
  const half = (DATA.plan?.view ?? 90) / 2;
  const seen = steps.filter((when) => off(when) <= 0.8 * half);
  if (!seen.length) return undefined;
  return seen.reduce((best, when) => (distance(of, when, thing) < distance(of, best, thing) ? when : best));
}

// The example and the two objects of a choice, each as it was seen best: buttons that go there.
function objects(of, at) {
  const { entered, seen, took, left } = before(of, at);
  const right = of.choices[at] > 0;
  if (!took) return [];
  const inRoom = of.values.map((_, when) => when).slice(entered, at + 1);
  const shown = [];
  const examples = seen?.length ? inView(of, seen[0]) : [];
  if (examples.length === 1) shown.push({ thing: examples[0], steps: seen, label: "the example", mark: "" });
  shown.push({ thing: took, steps: inRoom, label: right ? "✓ it took" : "✗ it took", mark: right ? "good" : "bad" });
  shown.push({ thing: left, steps: inRoom, label: "not taken", mark: "" });
  return shown.flatMap(({ thing, steps, label, mark }) => {
    const when = bestView(of, steps, thing);
    return when === undefined ? [] : [portrait(of, when, thing, label, mark, distance(of, at, took))];
  });
}

const distance = (of, when, thing) => Math.hypot(thing.x - of.poses[when][0], thing.y - of.poses[when][1]);
const shareOfView = (of, when, thing) => {
  const half = ((DATA.plan?.view ?? 90) * Math.PI) / 360;
  return 0.5 - Math.tan((bearing(of, when, thing) * Math.PI) / 180) / Math.tan(half) / 2;
};

// A square of the view of a step with a thing in its middle, enlarged if it is further away than `near`, where a thing
// fills the view.
function portrait(of, when, thing, label, mark, near) {
  const { width, height } = DATA.sheet;
  const whole = Math.min(width, height);
  const side = whole * Math.max(0.4, Math.min(1, (1.5 * near) / distance(of, when, thing)));
  const within = (middle, size) => Math.max(0, Math.min(size - side, middle - side / 2));
  const left = within(shareOfView(of, when, thing) * width, width);
  const top = within(0.55 * height, height);
  const canvas = element("canvas", { "aria-hidden": "true", width: 252, height: 252 });
  const scale = canvas.width / side;
  paint(canvas.getContext("2d"), when, -left * scale, -top * scale, width * scale, height * scale);
  const button = element("button", { class: `object ${mark}`, title: `Go to step ${when}` });
  button.append(
    canvas,
    element("b", {}, label),
    element("span", {}, thing.thing),
    element("span", {}, `seen at step ${when}`),
  );
  button.addEventListener("click", () => {
    stop();
    go(when);
  });
  return button;
}

// The choice to which a step belongs: that of the step, or the next one of its stay in the room; undefined if none.
function choiceOf(of, at) {
  const next = of.choices.findIndex((choice, when) => choice && when >= at);
  return next >= 0 && before(of, next).entered <= at ? next : undefined;
}

// Shows the verdict on the choice to which this step belongs, and its numbers, unless the episode is being played.
function answer() {
  const at = choiceOf(episode, step);
  const right = episode.choices[at] > 0;
  get("answer").hidden = at === undefined || timer !== null;
  if (get("answer").hidden) return;
  const ranks = compare(at);
  const [verdict, because] = headline(before(episode, at), right, episode, at, ranks);
  get("verdict").textContent = at === step ? verdict : `${verdict} (the choice at step ${at})`;
  get("verdict").className = right ? "good" : "bad";
  get("because").textContent = because;
  get("objects").replaceChildren(...objects(episode, at));
  get("choice").hidden = false;
  get("story").replaceChildren(...story(episode, at, ranks).map((text) => element("p", {}, text)));
  weigh(before(episode, at), at);
}

// Fills the table of a choice's numbers beside those of the correct choices of the page; returns how far out each is.
function compare(at) {
  const host = get("choice");
  const right = episode.choices[at] > 0;
  const others = usual(episode, at);
  const count = others.length;
  const far = [];
  const ranks = new Map();
  const rows = numbers(episode, at);
  const correct = `${count || "no"} ${right ? "other " : ""}correct choice${count === 1 ? "" : "s"}`;
  host.querySelector("thead th:last-child").textContent = `${correct}${count ? ": median (quartiles)" : ""}`;
  host.querySelector("tbody").replaceChildren(
    ...rows.map(([name, number, text]) => {
      const known = others
        .map((each) => each.known.get(name))
        .filter(Number.isFinite)
        .sort((a, b) => a - b);
      const [median, low, high] = [0.5, 0.25, 0.75].map((share) => text(quantile(known, share)));
      const [lower, higher, rare] = rank(number, known);
      ranks.set(name, [lower, higher, rare, known.length, [number, quantile(known, 0.5)]]);
      if (rare)
        far.push(
          `${name} (${lower < higher ? `${lower} of ${known.length} correct choices have one as low` : `${higher} of ${known.length} correct choices have one as high`})`,
        );
      const row = element("tr");
      row.append(element("th", { scope: "row" }, name), element("td", rare ? { class: "rare" } : {}, text(number)));
      row.append(element("td", {}, known.length ? `${median} (${low} to ${high})` : "–"));
      return row;
    }),
  );
  host.querySelector(".note:last-child").textContent =
    count < FEW
      ? `There ${count === 1 ? "is" : "are"} ${count ? "only " : ""}${correct}: too few to say what is usual.`
      : far.length
        ? `Unusual: ${far.join(", ")}. By chance, about ${Math.round(RARE * rows.length)} of ${rows.length} numbers would be.`
        : "No number is unusual: in each, more than one correct choice in five lies as far out.";
  return ranks;
}

// Draws how the verdict came about, step by step, with a button that goes to the step that changed it most, or back.
function weigh({ entered, terms, total, decided }, at) {
  get("weighed").hidden = total === undefined;
  if (total === undefined) return;
  let sum = 0;
  const steps = terms.map((_, index) => entered + index);
  const orders = terms.map((term) => (sum += term) / Math.LN10);
  const bound = Math.log10(TIMES);
  get("evidence").replaceChildren();
  new LineChart(get("evidence"), [{ name: "powers of ten", color: "var(--s0)", x: steps, y: orders, exact: true }], {
    height: 150,
    label: "how many times as likely the actions were as with the other example, in powers of ten",
    include: [-bound - 1, bound + 1],
    lines: [
      { name: "memory decided", value: bound },
      { name: "equally likely", value: 0 },
      { name: "against memory", value: -bound },
    ],
    domain: [entered, Math.max(entered + 1, steps[steps.length - 1])],
    xLabel: "step",
  });
  const there = step === decided && step !== at;
  get("decisive").textContent = there
    ? `back to the choice, step ${at}`
    : `go to step ${decided}, which changed it most`;
  get("decisive").onclick = () => {
    stop();
    go(there ? at : decided);
  };
}
