// A choice beside correct choices of the page, and what happened before it; included by `episode.html` before `episode.js`.
const RARE = 0.2, FEW = 9;  // unusual: at most this share of so many correct choices is as far out, on either side
const VALUE = "value on entering this room", TURNED = "steps in this room before its probabilities turned to what it took";
const SEEN = "steps with the example in view", READ = "attention to these steps when its probabilities turned (1: as with equal weights)";
let compared = new Map();  // numbers of all choices, by layer and head

// The share of the attention that goes to the steps from one to another, and what it would be if all slots had the same.
function sharesOf(slots, [from, to]) {
  const within = ({ first, last }) => Math.max(0, Math.min(last, to) - Math.max(first, from) + 1) / (last - first + 1);
  return [slots.reduce((sum, slot) => sum + slot.weight * within(slot), 0), slots.reduce((sum, slot) => sum + within(slot), 0) / slots.length];
}

// What the environment names at a step and says where it is: [{name, words, thing, x, y}].
const located = (of, at) => Object.entries(of.situations?.[at] ?? {}).map(([name, known]) => {
  const [words, x, y] = [].concat(known);
  return { name, words, thing: words.split(", ")[0], x, y };
}).filter(({ words, x }) => words.includes(", ") && Number.isFinite(x));

// How far a place is to the left of the direction of view at a step, in degrees from -180 to 180.
const wrapped = (angle) => ((angle % 360) + 540) % 360 - 180;
function bearing(of, at, { x, y }) {
  const [east, north, yaw] = of.poses[at];
  return wrapped((180 / Math.PI) * Math.atan2(y - north, x - east) - yaw);
}

// How far each action moves the agent on this page until the next step, [forward, to the left]: a mean, 0 if it was never taken.
let moved;
function moves() {
  if (moved) return moved;
  const sums = DATA.actions.map(() => [0, 0, 0]);
  for (const { actions, poses } of DATA.episodes) {
    for (let at = 0; at + 1 < poses.length; at++) {
      const [[x, y, yaw, room], [east, north, , next]] = [poses[at], poses[at + 1]], turn = (Math.PI / 180) * yaw;
      if (room !== next) continue; // it may have been put elsewhere
      const [along, up, sum] = [east - x, north - y, sums[actions[at]]];
      sum[0] += along * Math.cos(turn) + up * Math.sin(turn);
      sum[1] += up * Math.cos(turn) - along * Math.sin(turn);
      sum[2]++;
    }
  }
  return (moved = sums.map(([ahead, left, count]) => (count ? [ahead / count, left / count] : [0, 0])));
}

// For each action of a step its probability times how much more nearly it moves to the first of two things than to the other.
function leads(of, at, things) {
  const [a, b] = things.map((thing) => (Math.PI / 180) * bearing(of, at, thing));
  return moves().map(([ahead, left], action, { length }) =>
    (of.probabilities[at * length + action] / 255) * (ahead * (Math.cos(a) - Math.cos(b)) + left * (Math.sin(a) - Math.sin(b))));
}
const balance = (...which) => leads(...which).reduce((sum, each) => sum + each, 0);

// What preceded a choice: when its room was entered, the stay before in the first room and the steps of it with something
// in view; of two things their names, which one it took, and from which step on its probabilities led to that one: the
// first from which on they do so in sum, up to any later step (the step after the choice if there is none).
function before(of, at) {
  const placed = of.poses && DATA.plan, stay = placed ? visits(of).filter(([first]) => first <= at).pop() : undefined;
  let entered = at;
  while (placed && entered > 0 && of.poses[entered - 1][3] === of.poses[at][3]) entered--;
  const inView = (when) => located(of, when).some((thing) => Math.abs(bearing(of, when, thing)) <= (DATA.plan.view ?? 360) / 2);
  const seen = stay && of.situations ? of.poses.map((_, when) => when).slice(stay[0], Math.min(stay[1], at) + 1).filter(inView) : undefined;
  const things = placed ? located(of, at) : [], far = ({ x, y }) => Math.hypot(x - of.poses[at][0], y - of.poses[at][1]);
  if (things.length !== 2) return { entered, stay, seen };
  const [took, left] = things.sort((a, b) => far(a) - far(b));
  let [turned, sum, least] = [entered, 0, 0];
  for (let when = entered; when <= at; when++) {
    sum += balance(of, when, things);
    if (sum <= least) [turned, least] = [when + 1, sum];
  }
  const alike = took.thing.split(" ").filter((word) => left.thing.split(" ").includes(word)).join(" ");
  return { entered, stay, seen, took, left, turned, alike };
}

// [name, number, its text] of a choice, by the layer and head that the menus choose.
function numbers(of, at) {
  const { entered, stay, seen, turned } = before(of, at);
  const found = [["value before the choice", of.values[at] ?? NaN, signed]];
  if (of.poses && DATA.plan) found.push([VALUE, of.values[entered] ?? NaN, signed]);
  if (turned !== undefined) found.push([TURNED, turned - entered, readable]);
  found.push(["probability of the last action", of.probabilities[at * DATA.actions.length + of.actions[at]] / 255, percent]);
  if (stay) found.push([`steps since the ${DATA.plan.rooms[0]}`, at - stay[1], readable]);
  if (seen) found.push([SEEN, seen.length, readable]);
  if (!of.layers.length) return found;
  const slots = attention(at, of);
  if (seen?.length && turned !== undefined) {
    const then = attention(Math.min(turned, at), of), parts = seen.map((when) => sharesOf(then, [when, when]));
    found.push([READ, parts.reduce((sum, [share]) => sum + share, 0) / parts.reduce((sum, [, equal]) => sum + equal, 0), readable]);
  }
  if (stay) {
    const [share, equal] = sharesOf(slots, stay);
    const name = `attention at the choice to the latest stay in the ${DATA.plan.rooms[0]}`;
    found.push([name, share, percent], [`${name} (1: as with equal weights)`, share / equal, readable]);
  }
  of.kinds.forEach((kind, index) => {
    if (!of.layers.some(({ sizes }) => sizes[index])) return;
    found.push([`attention to ${kind === "segment" ? "the " : ""}${NAMES[kind]}`, slots.reduce((sum, slot) => sum + (slot.kind === kind ? slot.weight : 0), 0), percent]);
  });
  return found;
}

// Whether all slots but those of the segment hold something at a step.
function isFull(of, at) {
  const { sizes } = of.layers[get("layer").value === MEAN ? 0 : Number(get("layer").value)];
  return attention(at, of).filter(({ kind }) => kind !== "segment").length === sizes[0] + sizes[1];
}

// The other correct choices to compare with, each a Map from name to number, and what they have in common with this one:
// their place in the episode; or, if these are few and memory is full, that it is.
function others(of, at) {
  const menus = `${get("layer")?.value} ${get("head")?.value}`;
  if (!compared.has(menus)) {
    compared.set(menus, DATA.episodes.flatMap((each) => each.choices.flatMap((choice, when) => (choice ? [[each, when]] : [])).map(([, when], index) => (
      { each, when, index, right: each.choices[when] > 0, full: each.layers.length > 0 && isFull(each, when), known: new Map(numbers(each, when)) }))));
  }
  const all = compared.get(menus), here = all.find(({ each, when }) => each === of && when === at);
  const correct = all.filter((one) => one.right && one !== here), same = correct.filter(({ index }) => index === here.index);
  if (!of.layers.length) return [correct, ""];
  return same.length < FEW && here.full ? [correct.filter(({ full }) => full), " with full memory"] : [same, `, each choice ${here.index + 1} of its episode`];
}

// How far out a number is among sorted ones: [how many are as low, how many are as high, whether it is unusual].
function rank(number, known) {
  const lower = known.filter((each) => each <= number).length, higher = known.filter((each) => each >= number).length;
  return [lower, higher, Number.isFinite(number) && known.length >= FEW && (2 * (Math.min(lower, higher) + 1)) / (known.length + 1) <= RARE];
}

// A quantile of sorted numbers, linear between them.
function quantile(sorted, share) {
  const at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.ceil(at)] - sorted[low]);
}

// Sentences on a choice between two things: of a wrong one what stands out, and what happened and what memory held.
function story(of, at, ranks) {
  const { entered, stay, seen, took, left, turned, alike } = before(of, at), then = Math.min(turned, at);
  if (!took) return [];
  const example = DATA.plan.rooms[0].replace(/^room of /, ""), late = turned - entered;
  const when = late ? `${late} step${late === 1 ? "" : "s"} after entering this room` : "when it entered this room";
  const happened = [`It took the ${took.words} (${took.name}), not the ${left.words} (${left.name}).`];
  if (turned <= at) {
    const rows = of.poses.slice(turned, at + 1).map((_, index) => leads(of, turned + index, [took, left]));
    const sums = rows.map((row) => row.reduce((sum, each) => sum + each, 0)), most = sums.indexOf(Math.max(...sums));
    const action = rows[most].indexOf(Math.max(...rows[most])), chance = of.probabilities[(turned + most) * DATA.actions.length + action];
    happened.push(`Its action probabilities led to what it took most at step ${turned + most}, above all by ${DATA.actions[action]}, ${percent(chance / 255)}.`);
  }
  const held = seen && of.layers.length ? seen.filter((when) => attention(then, of).some(({ first, last }) => first <= when && when <= last)) : [];
  if (seen?.length) {
    happened.push(`In the ${DATA.plan.rooms[0]}, ${seen.length} of the ${stay[1] - stay[0] + 1} steps of the latest stay (${span(...stay)}) had ${example} in view.`);
    if (of.layers.length) happened.push(`${held.length === seen.length ? "All" : held.length || "None"} of them were in memory at step ${then}.`);
  }
  if (of.choices[at] > 0) return [happened.join(" ")];
  const all = [...compared.values()].pop(), rate = (of) => `${of.filter((one) => !one.right).length} of ${of.length}`;
  const apart = (is, these, those) => (all.some(is) && !all.every(is) ? `: ${these}, ${rate(all.filter(is))} on this page were wrong, ${those}, ${rate(all.filter((one) => !is(one)))}` : "");
  const [readLow, , readRare] = ranks.get(READ) ?? [], [low, high, valueRare] = ranks.get(VALUE) ?? [], parts = [];
  if (seen && !seen.length) parts.push(`${example} was not in view in the latest stay, so that what to take could not be seen in it`);
  else if (seen && of.layers.length && !held.length) parts.push(`no step with ${example} in view was in memory any more, so that it could be known only through later steps${apart((one) => !Number.isFinite(one.known.get(READ)), "of choices without one in memory", "of those with one")}`);
  else if (ranks.has(READ) && readRare) parts.push(`${example} had been in view and was in memory, but its steps had unusually ${readLow < ranks.get(READ)[1] ? "little" : "much"} attention`);
  else if (ranks.has(READ)) parts.push(`${example} had been in view and was in memory${ranks.get(READ)[3] < FEW ? "" : `; its steps had ${readLow < ranks.get(READ)[1] ? "less" : "more"} attention than at ${Math.max(readLow, ranks.get(READ)[1])} of ${ranks.get(READ)[3]} correct choices, which is not unusual`}`);
  if (valueRare && low < high) parts.push(`on entering this room the agent already expected less than at ${high} of ${ranks.get(VALUE)[3]} correct choices`);
  if (alike) parts.push(`the two are alike ("${alike}")${apart((one) => before(one.each, one.when).alike, "of choices between such things", "of the others")}`);
  const said = parts.map((part) => part[0].toUpperCase() + part.slice(1)).join(". ");
  const turn = turned > at ? "Up to the choice its action probabilities led, on balance, to the other, and the actions that were drawn from them to this one" : `From step ${turned} on, ${when}, its action probabilities led to this one rather than to the other, on balance`;
  return [`In short: it took the ${took.words}. ${turn}. ${said}${said && ". "}What the agent read from these steps is not recorded, so these are circumstances, and no proof of a cause.`, happened.join(" ")];
}

// Shows the numbers of a choice at its step, unless the episode is being played.
function compare() {
  const host = get("choice"), right = episode.choices[step] > 0;
  host.hidden = !episode.choices[step] || timer !== null;
  if (host.hidden) return;
  const [usual, which] = others(episode, step), count = usual.length, far = [], ranks = new Map(), rows = numbers(episode, step);
  const correct = `${count || "no"} ${right ? "other " : ""}correct choice${count === 1 ? "" : "s"}${which}`;
  host.querySelector("h2").textContent = `This choice was ${right ? "right" : "wrong"}`;
  host.querySelector("thead th:last-child").textContent = `${correct}${count ? ": median (quartiles)" : ""}`;
  host.querySelector("tbody").replaceChildren(...rows.map(([name, number, text]) => {
    const known = usual.map((each) => each.known.get(name)).filter(Number.isFinite).sort((a, b) => a - b);
    const [median, low, high] = [0.5, 0.25, 0.75].map((share) => text(quantile(known, share)));
    const [lower, higher, rare] = rank(number, known);
    ranks.set(name, [lower, higher, rare, known.length]);
    if (rare) far.push(`${name} (${lower < higher ? `${lower} of ${known.length} correct choices have one as low` : `${higher} of ${known.length} correct choices have one as high`})`);
    const row = element("tr");
    row.append(element("th", { scope: "row" }, name), element("td", rare ? { class: "rare" } : {}, text(number)));
    row.append(element("td", {}, known.length ? `${median} (${low} to ${high})` : "–"));
    return row;
  }));
  get("story").replaceChildren(...story(episode, step, ranks).map((text) => element("p", text.startsWith("In short") ? { class: "lesson" } : {}, text)));
  host.querySelector(".note").textContent = count < FEW ? `There ${count === 1 ? "is" : "are"} ${count ? "only " : ""}${correct}: too few to say what is usual.`
    : far.length ? `Unusual: ${far.join(", ")}. By chance, about ${Math.round(RARE * rows.length)} of ${rows.length} numbers would be.`
      : "No number is unusual: in each, more than one correct choice in five lies as far out.";
}

