// Actions that are vectors, column by column; included by `episode.html` before `episode.js`. A number is a track from
// its lowest to its highest value, with the policy's mean and what was taken; a choice has bars of its probabilities.
const FOLDED = 8; // with more columns than this, bars of choices are folded until they are asked for
const NARROW = 16; // letters of a name beside a track
const WIDE = 30; // and of other names
const MOST_VALUES = 12; // of a choice, those that were most probable

// Where each column's numbers are: `first` among all probabilities, or `number` among all means.
function placed(columns) {
  let first = 0;
  let number = 0;
  return columns.map((column) => {
    const at = { ...column, first, number };
    if (column.size) first += column.size;
    else number += 1;
    return at;
  });
}

// A probability, of which the square root is stored.
const chanceOf = (root) => (root / 65535) ** 2;
const widthOf = (share) => Number((100 * share).toFixed(2));
const taken = (of, at, index) => of.numbers.received[at * DATA.columns.length + index];
const written = (value) => signed(Number(value.toPrecision(3))).replace("+", "");
const meaning = (column, value) => (column.size ? String(value) : written(value));

// The action of a step in a few words.
function briefly(of, at) {
  const values = DATA.columns.slice(0, FOLDED).map((column, index) => meaning(column, taken(of, at, index)));
  return `${values.join(" · ")}${DATA.columns.length > FOLDED ? " …" : ""}`;
}

// The probabilities of a choice at a step: [value, share], of many values those that are most probable and the taken one.
function chancesOf(of, column, at, chosen) {
  const total = of.probabilities.length / of.values.length;
  const begin = at * total + column.first;
  const all = Array.from({ length: column.size }, (_, index) => [
    column.low + index,
    chanceOf(of.probabilities[begin + index]),
  ]);
  if (all.length <= MOST_VALUES) return all;
  const best = all
    .filter(([value]) => value !== chosen)
    .sort((a, b) => b[1] - a[1])
    .slice(0, MOST_VALUES - 1);
  return [all[chosen - column.low], ...best].sort((a, b) => a[0] - b[0]);
}

// Mean and scale of a number at a step.
function momentsOf(of, column, at) {
  const each = of.numbers.means.length / of.values.length;
  const place = at * each + column.number;
  return [of.numbers.means[place], of.numbers.scales[place]];
}

const along = ({ low, high }, value) => `${100 * Math.max(0, Math.min(1, (value - low) / (high - low)))}%`;

// A name in its place; the end of a long one tells it from others.
function named(column, most) {
  const { name } = column;
  return element("span", { title: name }, name.length > most ? `…${name.slice(1 - most)}` : name);
}

// Builds what shows a column, once; returns its node and a function that shows a step.
function showNumber(column, index) {
  const bounded = column.low !== null;
  const node = element("div", { class: bounded ? "column" : "column wide-name" });
  const value = element("b");
  node.append(named(column, bounded ? NARROW : WIDE));
  if (!bounded) {
    const policy = element("span", { class: "policy" });
    node.append(policy, value);
    return [
      node,
      (of, at) => {
        const [mean, scale] = momentsOf(of, column, at);
        policy.textContent = `${meaning(column, mean)} ± ${written(scale)}`;
        value.textContent = meaning(column, taken(of, at, index));
      },
    ];
  }
  const track = element("div", { class: "track" });
  const expected = element("i");
  const dot = element("em");
  const ends = element("small");
  ends.append(element("span", {}, meaning(column, column.low)), element("span", {}, meaning(column, column.high)));
  track.append(expected, dot);
  if (DATA.columns.length <= FOLDED) track.append(ends);
  node.append(track, value);
  return [
    node,
    (of, at) => {
      const [mean] = momentsOf(of, column, at);
      const chosen = taken(of, at, index);
      expected.setAttribute("style", `left: ${along(column, mean)}`);
      dot.setAttribute("style", `left: ${along(column, chosen)}`);
      track.setAttribute(
        "title",
        `${meaning(column, column.low)} to ${meaning(column, column.high)}; mean ${meaning(column, mean)}`,
      );
      value.textContent = meaning(column, chosen);
    },
  ];
}

function showChoice(column, index) {
  const node = element("details");
  const head = element("summary", { class: "column wide-name" });
  const bars = element("div", { class: "bars" });
  const value = element("b");
  const share = element("span", { class: "policy" });
  if (DATA.columns.length <= FOLDED) node.setAttribute("open", "");
  head.append(named(column, WIDE), share, value);
  node.append(head, bars);
  return [
    node,
    (of, at) => {
      const chosen = taken(of, at, index);
      const chances = chancesOf(of, column, at, chosen);
      const [, probability] = chances.find(([each]) => each === chosen);
      value.textContent = meaning(column, chosen);
      share.textContent = percent(probability);
      bars.replaceChildren(
        ...chances.flatMap(([each, chance]) => {
          const marked = each === chosen ? { class: "chosen" } : {};
          return [
            element("span", marked, String(each)),
            element("i", { style: `width: ${widthOf(chance)}%` }),
            element("b", marked, percent(chance)),
          ];
        }),
      );
      if (chances.length < column.size) {
        const rest = Math.max(0, 1 - chances.reduce((sum, [, chance]) => sum + chance, 0));
        bars.append(
          element("span", {}, "others"),
          element("i", { style: `width: ${widthOf(rest)}%` }),
          element("b", {}, percent(rest)),
        );
      }
    },
  ];
}

let shownColumns;

// Shows the action of a step; the nodes stay, so that what was opened stays open.
function showColumns(of, at) {
  if (!shownColumns) {
    shownColumns = placed(DATA.columns).map((column, index) => (column.size ? showChoice : showNumber)(column, index));
    get("columns").replaceChildren(...shownColumns.map(([node]) => node));
  }
  for (const [, update] of shownColumns) update(of, at);
}
