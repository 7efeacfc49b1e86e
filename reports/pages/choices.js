// A choice beside the correct choices of all episodes of the page; included by `episode.html` before `episode.js`.
const RARE = 0.2;  // a number is unusual if at most this share of correct choices is as far out, on either side
let compared = new Map();  // numbers of the correct choices, by layer and head

// The share of the attention that goes to the steps from one to another, and what it would be if all slots had the same.
function sharesOf(slots, [from, to]) {
  const within = ({ first, last }) => Math.max(0, Math.min(last, to) - Math.max(first, from) + 1) / (last - first + 1);
  return [slots.reduce((sum, slot) => sum + slot.weight * within(slot), 0), slots.reduce((sum, slot) => sum + within(slot), 0) / slots.length];
}

// [name, number, its text, whether it changes as memory fills] of a choice, by the layer and head that the menus choose.
function numbers(of, at) {
  const placed = of.poses && DATA.plan, stay = placed && visits(of).filter(([first]) => first <= at).pop();
  let entered = at;
  while (placed && entered > 0 && of.poses[entered - 1][3] === of.poses[at][3]) entered--;
  const found = [["value before the choice", of.values[at] ?? NaN, signed]];
  if (placed) found.push(["value on entering this room", of.values[entered] ?? NaN, signed]);
  found.push(["probability of the last action", of.probabilities[at * DATA.actions.length + of.actions[at]] / 255, percent]);
  if (stay) found.push([`steps since the ${DATA.plan.rooms[0]}`, at - stay[1], String]);
  if (!of.layers.length) return found;
  const slots = attention(at, of);
  if (stay) {
    const since = Array.from({ length: at - entered + 1 }, (_, index) => sharesOf(attention(entered + index, of), stay)[0]);
    const [share, equal] = sharesOf(slots, stay);
    const mean = since.reduce((sum, each) => sum + each, 0) / since.length;
    found.push(["attention to the latest stay there", share, percent, true], ["the same over that of equal weights", share / equal, readable]);
    found.push(["attention to that stay, mean in this room", mean, percent, true]);
  }
  of.kinds.forEach((kind, index) => {
    if (!of.layers.some(({ sizes }) => sizes[index])) return;
    found.push([`attention to ${kind === "segment" ? "the " : ""}${NAMES[kind]}`, slots.reduce((sum, slot) => sum + (slot.kind === kind ? slot.weight : 0), 0), percent, true]);
  });
  return found;
}

// All correct choices of the page but one, each as a Map from name to number.
function others(of, at) {
  const menus = `${get("layer")?.value} ${get("head")?.value}`;
  if (!compared.has(menus)) {
    compared.set(menus, DATA.episodes.flatMap((each) => each.choices.flatMap((choice, when) => (
      choice > 0 ? [{ each, when, known: new Map(numbers(each, when)) }] : []))));
  }
  return compared.get(menus).filter(({ each, when }) => each !== of || when !== at).map(({ known }) => known);
}

// A quantile of sorted numbers, linear between them.
function quantile(sorted, share) {
  const at = share * (sorted.length - 1), low = Math.floor(at);
  return sorted[low] + (at - low) * (sorted[Math.ceil(at)] - sorted[low]);
}

// Shows the numbers of a choice at its step, unless the episode is being played.
function compare() {
  const host = get("choice"), right = episode.choices[step] > 0;
  host.hidden = !episode.choices[step] || timer !== null;
  if (host.hidden) return;
  const slots = episode.kinds.indexOf("compressed"), compresses = episode.layers.some(({ sizes }) => sizes[slots]);
  const early = compresses && attention(step).every(({ kind }) => kind !== "compressed");
  const empty = early ? " Nothing was compressed yet at this step." : "";
  const usual = others(episode, step), count = usual.length, far = [], few = 2 / (count + 1) > RARE;
  const correct = `${count || "no"} ${right ? "other " : ""}correct choice${count === 1 ? "" : "s"}`;
  host.querySelector("h2").textContent = `This choice was ${right ? "right" : "wrong"}`;
  host.querySelector("thead th:last-child").textContent = `${correct}${count ? ": median (quartiles)" : ""}`;
  host.querySelector("tbody").replaceChildren(...numbers(episode, step).map(([name, number, text, fills]) => {
    const known = usual.map((each) => each.get(name)).filter(Number.isFinite).sort((a, b) => a - b);
    const [median, low, high] = [0.5, 0.25, 0.75].map((share) => text(quantile(known, share)));
    const lower = known.filter((each) => each <= number).length, higher = known.filter((each) => each >= number).length;
    const rare = !fills && known.length && (2 * (Math.min(lower, higher) + 1)) / (known.length + 1) <= RARE;
    if (rare) far.push(`${name} (${lower < higher ? `${lower} of ${known.length} correct choices have one as low` : `${higher} of ${known.length} correct choices have one as high`})`);
    const row = element("tr");
    row.append(element("th", { scope: "row" }, name), element("td", rare ? { class: "rare" } : {}, text(number)));
    row.append(element("td", {}, known.length ? `${median} (${low} to ${high})` : "–"));
    return row;
  }));
  host.querySelector("p").textContent = few ? `There ${count === 1 ? "is" : "are"} ${count ? "only " : ""}${correct} on this page: too few to say what is usual.`
    : (far.length ? `Unusual: ${far.join(", ")}.`
      : "No number is unusual: in each, more than one correct choice in five lies as far out.")
      + (episode.layers.length ? " Shares of attention are not judged, because they change as memory fills." + empty : "");
}

