// Charts as SVG; shared by all pages, after `page.js`.
// Charts of learning on one page, with controls for what is on the x axis and how much is smoothed.
// axes: names of the x axes by the field of a series that has them; options: of every chart.
class Board {
  constructor(controls, axes, options = {}) {
    Object.assign(this, { axes, options, draw: [] });
    if (Object.keys(axes).length > 1) {
      const select = element("select");
      for (const [axis, name] of Object.entries(axes)) select.append(element("option", { value: axis }, name));
      this.control(controls, "x axis", select, "axis");
    }
    this.control(controls, "smoothing", element("input", { type: "range", min: 0, max: 1, step: 0.05 }), "smoothing");
  }

  control(controls, name, input, field) {
    const label = element("label", {}, name);
    input.value = CHOSEN[field];
    input.addEventListener("input", () => {
      CHOSEN[field] = input.value;
      for (const draw of this.draw) draw();
    });
    label.append(input);
    controls.append(label);
  }

  // A box with a heading and a chart; series as in LineChart, but for colors. With the option `raw` nothing is smoothed.
  // Returns its host.
  add(parent, { title, unit = "", include, lines, series }, options = {}) {
    const box = element("div");
    const heading = element("h3", {}, title);
    const host = element("div");
    const legend = element("div", { class: "legend" });
    heading.append(element("span", { class: "unit" }, unit));
    box.append(heading, host, legend);
    parent.append(box);
    const colored = series.map((line, index) => ({ ...line, color: line.color || colorOf(line.index ?? index) }));
    const draw = () => {
      const { axis } = CHOSEN;
      const smoothing = options.raw ? 0 : CHOSEN.smoothing;
      const bands = axis === "x" ? this.options.bands : [];
      const most = Math.max(0, ...series.flatMap((line) => line[axis] || []));
      const [unit, each] =
        this.axes[axis] !== "time"
          ? [this.axes[axis], 1]
          : most < 300
            ? ["seconds", 1]
            : most < 7200
              ? ["minutes", 60]
              : ["hours", 3600];
      const placed = colored
        .filter((line) => line[axis])
        .map((line) => placedAt(line, axis, each));
      const breaks = (bands || []).flatMap(({ from, to }) => [from, to]); // stages of a curriculum are different tasks
      const drawn = placed.flatMap((line) =>
        line.exact || line.thin || !Number(smoothing)
          ? [line]
          : [{ ...line, thin: true, low: null, high: null }, smoothed(line, smoothing, breaks)],
      );
      host.replaceChildren();
      new LineChart(host, drawn, {
        height: 170,
        domain: [0, most / each || 1],
        include,
        lines,
        legend,
        xLabel: unit,
        label: `${title} over ${unit}`,
        ...this.options,
        ...options,
        bands,
      });
    };
    this.draw.push(draw);
    draw();
    return host;
  }
}

// A line over an axis in a unit, without the rows that have no place there.
function placedAt(line, axis, unit) {
  const known = line[axis].map((_, index) => index).filter((index) => line[axis][index] !== null);
  const kept = (values) => values && known.map((index) => values[index]);
  const x = kept(line[axis]).map((place) => place / unit);
  return { ...line, x, y: kept(line.y), low: kept(line.low), high: kept(line.high) };
}

// A curve as an exponential moving average without the bias of its beginning, over a share of its points: at most about
// a twentieth. Gaps stay, and at the places `breaks` on the x axis it begins anew.
function smoothed(line, share, breaks = []) {
  const weight = Math.exp(-20 / (share * line.y.length));
  const isBroken = (index) => index > 0 && breaks.some((place) => line.x[index - 1] < place && place <= line.x[index]);
  const along = (values) => {
    let sum = 0;
    let total = 0;
    return (
      values &&
      values.map((value, index) => {
        if (isBroken(index)) [sum, total] = [0, 0];
        if (value === null) return null;
        sum = weight * sum + (1 - weight) * value;
        total = weight * total + 1 - weight;
        return sum / total;
      })
    );
  };
  return { ...line, y: along(line.y), low: along(line.low), high: along(line.high) };
}
// Round numbers from low to high.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    found.push(Number((index * step).toPrecision(12)));
  }
  return found;
}

// Round numbers as text, with the digits of the step between them.
function tickTexts(places) {
  if (places.length < 2) return places.map(readable);
  const step = places[1] - places[0];
  return places.map((place) => {
    const size = Math.abs(place);
    if (size < 0.01) return readable(place);
    const [unit, name] = unitOf(size);
    const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    return Number((place / unit).toFixed(Math.min(decimals, 12))) + name;
  });
}

function extent(series, atLeast) {
  let [low, high] = atLeast || [Infinity, -Infinity];
  for (const { y, low: lower, high: upper } of series) {
    for (const values of [y, lower, upper]) {
      for (const value of values || []) {
        if (value === null) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
  }
  // Without a range that must be seen, a tenth of the values is: smaller changes are not drawn as large ones.
  const least = atLeast ? 0 : 0.1 * Math.max(Math.abs(low), Math.abs(high));
  const more = Math.max(0, (least - (high - low)) / 2);
  [low, high] = [low - more, high + more];
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low === 0 ? 0 : low - room, high + room];
}

// Lines over x. series: [{name, color, x, y, stems, low, high, thin, dash, exact}]; y may hold nulls, stems draws bars
// from 0 instead of a line, low and high a band around it; thin lines are not in the legend, exact ones have dots. A
// single value is a dot, and the chart says so; it also says if there is none.
// options: lines ([{name, value, color}], drawn across; one with a color is solid), height, domain ([from, to] of x),
// include ([low, high] that y shows at least), bands ([{from, to, label, plain}], of which plain ones are not shaded),
// inset ({left, right}: pixels beside the plot, which then has no axis of x), xLabel, label (for screen readers), legend
// (element for names and values: where the pointer is, or the arrow keys have moved it, or the last ones, if not unread),
// pick (called with x where the chart is clicked or dragged on).
class LineChart {
  constructor(host, series, options = {}) {
    const known = series.flatMap((line) => line.x.filter((_, index) => line.y[index] !== null));
    Object.assign(this, { host, series, options, known, at: null });
    this.svg = shape("svg", { role: "img", "aria-label": options.label || "" });
    this.svg.redraw = () => this.draw();
    host.append(this.svg);
    // In a closed group the width is 0: the observer draws when the group opens.
    new ResizeObserver((_, observer) => (this.svg.isConnected ? this.draw() : observer.disconnect())).observe(host);
    this.draw();
    this.say();
    if (!known.length) return;
    const position = (event) => this.x.back(event.clientX - this.svg.getBoundingClientRect().left);
    if (options.pick) {
      let down = false;
      this.svg.style.cursor = "pointer";
      this.svg.style.touchAction = "pan-y";
      this.svg.addEventListener("pointerdown", (event) => {
        down = true;
        this.svg.setPointerCapture(event.pointerId);
        options.pick(position(event));
      });
      this.svg.addEventListener("pointermove", (event) => down && options.pick(position(event)));
      this.svg.addEventListener("pointerup", () => (down = false));
      this.svg.addEventListener("pointercancel", () => (down = false));
    } else if (options.legend) {
      this.svg.setAttribute("tabindex", 0);
      this.svg.addEventListener("pointermove", (event) => this.cursor(position(event)));
      this.svg.addEventListener("pointerleave", () => this.cursor(null));
      // What the arrow keys find is read out; what the pointer passes is not.
      this.svg.addEventListener("focus", () => options.legend.setAttribute("aria-live", "polite"));
      this.svg.addEventListener("blur", () => {
        options.legend.setAttribute("aria-live", "off");
        this.cursor(null);
      });
      this.svg.addEventListener("keydown", (event) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
        const { x } = this.series[this.series.length - 1] || {};
        if (!by || !x) return;
        event.preventDefault();
        const at = this.at === null ? (by > 0 ? -1 : x.length) : nearest(x, this.at);
        this.cursor(x[Math.min(x.length - 1, Math.max(0, at + by))]);
      });
    }
  }

  draw() {
    const { series, options } = this;
    const width = this.host.clientWidth;
    if (!width) return;
    if (!this.known.length) return this.sayEmpty(width);
    const height = options.height || 180;
    const inset = options.inset;
    const box =
      inset === undefined
        ? { left: 52, right: width - 8, top: 10, bottom: height - 26 }
        : { left: inset.left, right: width - inset.right, top: 6, bottom: height - 6 };
    const all = series.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    const [from, to] = options.domain || [Math.min(...all), Math.max(...all)];
    const lines = options.lines || [];
    const [low, high] = extent([...series, { y: lines.map((line) => line.value) }], options.include);
    const across = (box.right - box.left) / (to - from || 1);
    this.x = (value) => box.left + (value - from) * across;
    this.x.back = (pixel) => Math.min(to, Math.max(from, from + (pixel - box.left) / across));
    this.y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
    this.box = box;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = `${height}px`;
    this.svg.replaceChildren();
    for (const band of options.bands || []) {
      const left = this.x(band.from);
      const wide = Math.max(0, this.x(band.to) - left);
      if (!band.plain)
        this.svg.append(
          shape("rect", { x: left, y: box.top, width: wide, height: box.bottom - box.top, fill: "var(--band)" }),
        );
      if (band.label && wide > 7 * band.label.length + 8) {
        this.svg.append(shape("text", { x: left + wide / 2, y: box.top + 12, "text-anchor": "middle" }, band.label));
      }
    }
    const heights = ticks(low, high, height > 120 ? 4 : height > 60 ? 3 : 2);
    const heightTexts = tickTexts(heights);
    heights.forEach((tick, index) => {
      const y = this.y(tick);
      this.svg.append(shape("line", { x1: box.left, x2: box.right, y1: y, y2: y, stroke: "var(--grid)" }));
      this.svg.append(shape("text", { x: box.left - 8, y: y + 4, "text-anchor": "end" }, heightTexts[index]));
    });
    for (const { value, color } of lines) {
      const y = this.y(value);
      this.svg.append(
        shape("line", {
          x1: box.left,
          x2: box.right,
          y1: y,
          y2: y,
          stroke: color || "var(--faint)",
          "stroke-dasharray": color ? "none" : "2 3",
        }),
      );
    }
    for (const line of series) this.line(line);
    this.nameLines(lines);
    const first = Math.min(...this.known);
    const empty = `no values before ${readable(first)}`;
    const begin = this.x(first) - box.left;
    const values = Math.max(...series.map((line) => line.y.filter((value) => value !== null).length));
    if (values < 2) {
      const text = "a single value: no curve yet";
      this.svg.append(
        shape(
          "text",
          { x: (box.left + box.right) / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle", class: "within" },
          text,
        ),
      );
    } else if (inset === undefined && begin > 7 * empty.length + 8) {
      this.svg.append(
        shape(
          "text",
          { x: box.left + begin / 2, y: (box.top + box.bottom) / 2, "text-anchor": "middle", class: "within" },
          empty,
        ),
      );
    }
    if (inset === undefined) {
      const places = ticks(from, to, Math.max(2, Math.floor(width / 60)));
      const texts = tickTexts(places);
      const last = places.length - 1;
      const wide = 7 * `${texts[last]} ${options.xLabel || ""}`.length; // the last tick has the unit
      places.forEach((tick, index) => {
        const right = Math.min(box.right, this.x(places[last]) + wide / 2);
        const x = index < last ? this.x(tick) : right;
        const text = index < last ? texts[index] : `${texts[index]} ${options.xLabel || ""}`;
        if (index === last || x < right - wide - 24)
          this.svg.append(shape("text", { x, y: height - 6, "text-anchor": index < last ? "middle" : "end" }, text));
      });
    }
    this.hair = shape("line", { y1: box.top, y2: box.bottom, stroke: "var(--ink)", "stroke-width": 1.5 });
    this.svg.append(this.hair);
    this.cursor(this.at, true);
  }

  // Without values there is nothing to measure on an axis.
  sayEmpty(width) {
    const height = 48;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.style.height = `${height}px`;
    this.svg.replaceChildren(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no values yet"));
  }

  // The names of lines, each at the end that fewer curves cross and no other name is at.
  nameLines(lines) {
    const { series, box } = this;
    const placed = [];
    for (const { name, value, color } of lines) {
      const text = `${name} ${readable(value)}`;
      const wide = 7 * text.length;
      const at = this.y(value);
      const curveAbove = series.some((line) => (line.y[line.y.length - 1] ?? -Infinity) >= value);
      const below = (curveAbove && at < box.bottom - 13) || at < box.top + 12;
      const y = below ? at + 12 : at - 3;
      const crossings = (left) => {
        let count = 0;
        for (const line of series) {
          line.x.forEach((x, index) => {
            const beside = Math.abs(this.x(x) - left - wide / 2) < wide / 2;
            const near = Math.abs(this.y(line.y[index] ?? NaN) - y + 4) < 9;
            if (beside && near) count += 1;
          });
        }
        const taken = placed.some(
          (other) => Math.abs(other.y - y) < 13 && left < other.left + other.wide && other.left < left + wide,
        );
        return count + (taken ? 1e6 : 0);
      };
      const atLeft = crossings(box.left) < crossings(box.right - wide);
      placed.push({ y, wide, left: atLeft ? box.left : box.right - wide });
      const node = shape(
        "text",
        { x: atLeft ? box.left + 4 : box.right, y, "text-anchor": atLeft ? "start" : "end", class: "within" },
        text,
      );
      if (color) node.style.fill = color;
      this.svg.append(node);
    }
  }

  line({ x, y, color, stems, low, high, thin, dash, exact }) {
    if (exact && low) {
      for (let index = 0; index < x.length; index++) {
        if (low[index] === null || high[index] === null) continue;
        const at = this.x(x[index]);
        this.svg.append(
          shape("line", {
            x1: at,
            x2: at,
            y1: this.y(low[index]),
            y2: this.y(high[index]),
            stroke: color,
            "stroke-width": 1.25,
          }),
        );
      }
    } else if (low) {
      const shown = x.map((_, index) => index).filter((index) => low[index] !== null && high[index] !== null);
      const upper = shown.map((index) => `${this.x(x[index]).toFixed(1)},${this.y(high[index]).toFixed(1)}`);
      const lower = shown.map((index) => `${this.x(x[index]).toFixed(1)},${this.y(low[index]).toFixed(1)}`).reverse();
      this.svg.append(shape("polygon", { points: [...upper, ...lower].join(" "), fill: color, opacity: 0.16 }));
    }
    if (stems) {
      for (let index = 0; index < x.length; index++) {
        if (!y[index]) continue;
        const at = this.x(x[index]);
        this.svg.append(
          shape("line", {
            x1: at,
            x2: at,
            y1: this.y(0),
            y2: this.y(y[index]),
            "stroke-width": 2.5,
            stroke: y[index] > 0 ? "var(--good)" : "var(--bad)",
          }),
        );
      }
      return;
    }
    let path = "";
    let pen = false;
    for (let index = 0; index < x.length; index++) {
      if (y[index] === null) {
        pen = false;
        continue;
      }
      const [right, down] = [this.x(x[index]).toFixed(1), this.y(y[index]).toFixed(1)];
      path += `${pen ? "L" : "M"}${right} ${down}`;
      const alone = !pen && (y[index + 1] ?? null) === null;
      pen = true;
      if (alone || exact) this.svg.append(shape("circle", { cx: right, cy: down, r: thin ? 1.5 : 3, fill: color }));
    }
    this.svg.append(
      shape("path", {
        d: path,
        fill: "none",
        stroke: color,
        "stroke-width": thin ? 0.9 : 1.75,
        "stroke-linejoin": "round",
        opacity: thin ? 0.4 : 1,
        "stroke-dasharray": dash ? "6 4" : "none",
      }),
    );
  }

  // Moves the cursor to x, or away with null; the legend says the values there.
  cursor(at, drawn = false) {
    this.at = at;
    if (!this.hair) return;
    this.hair.style.display = at === null ? "none" : "";
    if (at !== null) {
      this.hair.setAttribute("x1", this.x(at));
      this.hair.setAttribute("x2", this.x(at));
    }
    if (!drawn) this.say();
  }

  // Whether a thin line is the first one of a color that no other line has.
  isAlone(line, index) {
    const alike = (other, at) => other.color === line.color && (!other.thin || at < index);
    return !this.series.some(alike);
  }

  say() {
    const { legend, xLabel } = this.options;
    if (!legend) return;
    const nodes = this.series
      .filter((line, index) => !line.thin || this.isAlone(line, index))
      .map((line) => {
        const node = element("span");
        const swatch = element("i");
        swatch.style.color = line.color;
        const known = line.y.length - 1 - [...line.y].reverse().findIndex((value) => value !== null);
        const index = this.at === null ? Math.min(known, line.y.length - 1) : nearest(line.x, this.at);
        const beyond =
          this.at !== null &&
          Math.abs(this.x(this.at) - this.x(Math.max(line.x[0], Math.min(line.x[line.x.length - 1], this.at)))) > 8;
        node.append(swatch, `${line.name} `);
        if (line.thin || (this.options.unread && this.at === null)) return node; // thin lines differ in their values
        const [value, low, high] = [line.y, line.low, line.high].map((values) => values?.[index] ?? null);
        if (beyond) node.append(element("b", {}, "–"));
        else if (value === null || low === null || high === null) node.append(element("b", {}, readable(value)));
        else {
          const [text, from, to] = withInterval(value, low, high);
          node.append(element("b", {}, text), ` [${from}, ${to}]`);
        }
        return node;
      });
    if (this.at !== null && xLabel) nodes.push(element("span", {}, `at ${readable(this.at)} ${xLabel}`));
    legend.replaceChildren(...nodes);
  }
}

function nearest(sorted, value) {
  let [low, high] = [0, sorted.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low > 0 && value - sorted[low - 1] < sorted[low] - value ? low - 1 : low;
}

// Bars with error bars. bars: [{name, value, error, color}]; names under the bars, values above them.
function barChart(host, bars, { height = 200, label = "", text = readable } = {}) {
  const said = bars.map((bar) => `${bar.name} ${text(bar.value)}`);
  const svg = shape("svg", { role: "img", "aria-label": [label, ...said].join("; ") });
  svg.redraw = draw;
  host.append(svg);
  function draw() {
    const width = host.clientWidth;
    if (!width) return;
    const box = { left: 48, right: width - 4, top: 18, bottom: height - 24 };
    const high = Math.max(...bars.map((bar) => bar.value + (bar.error || 0)), 1e-12) * 1.05;
    const each = (box.right - box.left) / bars.length;
    const y = (value) => box.bottom - (value / high) * (box.bottom - box.top);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    svg.replaceChildren();
    for (const tick of ticks(0, high, 4)) {
      svg.append(shape("line", { x1: box.left, x2: box.right, y1: y(tick), y2: y(tick), stroke: "var(--grid)" }));
      svg.append(shape("text", { x: box.left - 8, y: y(tick) + 4, "text-anchor": "end" }, text(tick)));
    }
    bars.forEach((bar, index) => {
      const [left, middle] = [box.left + index * each, box.left + (index + 0.5) * each];
      const rect = shape("rect", {
        x: left + each * 0.14,
        y: y(bar.value),
        width: each * 0.72,
        height: box.bottom - y(bar.value),
        rx: 2,
        fill: bar.color,
      });
      rect.append(shape("title", {}, `${bar.name}: ${text(bar.value)}`));
      svg.append(rect);
      if (bar.error) {
        svg.append(
          shape("line", {
            x1: middle,
            x2: middle,
            y1: y(bar.value - bar.error),
            y2: y(bar.value + bar.error),
            stroke: "var(--ink)",
            "stroke-width": 1.5,
          }),
        );
      } else if (each > 60) {
        svg.append(shape("text", { x: middle, y: y(bar.value) - 5, "text-anchor": "middle" }, text(bar.value)));
      }
      const room = each > 7 * (bar.short || bar.name).length;
      if (room) svg.append(shape("text", { x: middle, y: height - 6, "text-anchor": "middle" }, bar.short || bar.name));
    });
  }
  new ResizeObserver(draw).observe(host);
  draw();
}

// A text of at most so many letters; both ends of a long one tell it from others.
function middleLeftOut(text, most) {
  const letters = [...text];
  if (letters.length <= most) return text;
  const kept = Math.max(2, Math.floor(most) - 1);
  return `${letters.slice(0, Math.ceil(kept / 2)).join("")}…${letters.slice(-Math.floor(kept / 2)).join("")}`;
}

// Rows of values on one scale. rows: [{name, color, value, low, high, points, text, small}]: a diamond, a bar, circles,
// and at the right end the value and its interval as text; low and high may be null. options: lines ([{name, value}],
// drawn across), label.
function dotChart(host, rows, { lines = [], label = "" } = {}) {
  const said = rows.map((row) => `${row.name} ${row.text} ${row.small}`.trim());
  const svg = shape("svg", { role: "img", "aria-label": [label, ...said].join("; ") });
  svg.redraw = draw;
  host.append(svg);

  function draw() {
    const width = host.clientWidth;
    if (!width) return;
    const names = Math.max(...rows.map((row) => 7 * row.name.length));
    const intervals = Math.max(...rows.map((row) => 6.8 * row.small.length));
    const numbers = intervals + Math.max(...rows.map((row) => 8.5 * row.text.length));
    const beside = names + numbers < width / 2; // else names and numbers are above the bars
    const from = beside ? names + 16 : 8;
    const to = beside ? width - numbers - 24 : width - 8;
    const each = beside ? 28 : 42;
    const above = lines.length ? 28 : 0;
    const height = above + each * rows.length + 28;
    const values = rows.flatMap((row) => [row.value, row.low, row.high, ...row.points]);
    const [low, high] = extent([{ y: [...values, ...lines.map((line) => line.value)] }]);
    const x = (value) => from + ((value - low) / (high - low)) * (to - from);

    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    svg.replaceChildren();
    drawAxis();
    drawLines();
    rows.forEach((row, index) => drawRow(row, above + each * index));

    function drawAxis() {
      const places = ticks(low, high, Math.max(2, Math.floor((to - from) / 80)));
      const texts = tickTexts(places);
      places.forEach((tick, index) => {
        svg.append(shape("line", { x1: x(tick), x2: x(tick), y1: above - 2, y2: height - 24, stroke: "var(--grid)" }));
        let anchor = "middle";
        if (x(tick) > width - 30) anchor = "end";
        else if (x(tick) < 30) anchor = "start";
        svg.append(shape("text", { x: x(tick), y: height - 6, "text-anchor": anchor }, texts[index]));
      });
    }

    function drawLines() {
      const ends = [-Infinity, -Infinity]; // of the names in two rows above
      for (const { name, value } of [...lines].sort((a, b) => a.value - b.value)) {
        const half = 3.9 * name.length;
        const middle = Math.max(half, Math.min(width - half, x(value)));
        const level = middle - half > ends[0] + 6 ? 0 : 1;
        ends[level] = middle + half;
        const line = shape("line", {
          x1: x(value),
          x2: x(value),
          y1: 26 - 13 * level,
          y2: height - 24,
          stroke: "var(--faint)",
          "stroke-dasharray": "2 3",
        });
        line.append(shape("title", {}, `${name}: ${readable(value)}`));
        svg.append(
          line,
          shape("text", { x: middle, y: 22 - 13 * level, "text-anchor": "middle", class: "within" }, name),
        );
      }
    }

    function drawRow(row, top) {
      const y = top + (beside ? 14 : 30);
      const at = x(row.value);
      const line = beside ? y + 4 : top + 15;
      const room = (beside ? from - 16 : width - numbers - 24) / 7;
      const name = shape("text", { x: 8, y: line, class: "within name" }, middleLeftOut(row.name, room));
      name.append(shape("title", {}, row.name));
      svg.append(name);
      const end = width - 8 - intervals;
      svg.append(shape("text", { x: end, y: line, "text-anchor": "end", class: "within value" }, row.text));
      svg.append(shape("text", { x: end + 6, y: line, class: "within" }, row.small));
      if (row.low !== null) {
        svg.append(
          shape("line", {
            x1: x(row.low),
            x2: x(row.high),
            y1: y,
            y2: y,
            stroke: row.color,
            "stroke-width": 5,
            opacity: 0.3,
            "stroke-linecap": "round",
          }),
        );
      }
      for (const value of row.points)
        svg.append(shape("circle", { cx: x(value), cy: y, r: 3.5, fill: "none", stroke: row.color }));
      const mark = shape("path", { d: `M${at} ${y - 5}l5 5l-5 5l-5 -5z`, fill: row.color });
      mark.append(shape("title", {}, `${row.name}: ${row.text}`));
      svg.append(mark);
    }
  }
  new ResizeObserver(draw).observe(host);
  draw();
}
