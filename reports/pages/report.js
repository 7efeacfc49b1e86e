// The charts of a report; included by `report.html`.
const KINDS = { routed: "routed memory", compressed: "compressed memory", memory: "memory", segment: "segment" };
const percent = (value) => `${readable(100 * value)} %`;

function buckets() {
  const { bars, steps, episodes, full } = DATA.buckets;
  const isSpread = bars.some((bar) => bar.error);
  get("bucketnote").textContent =
    `Mean attention over layers, heads and ${readable(steps)} steps of ${episodes} episode${episodes === 1 ? "" : "s"}, from the oldest slots to the newest` +
    (full ? ", where memory was full" : "; memory was never full") +
    (isSpread ? ". Lines are the standard error over episodes" : "") +
    " (Figure 2 of the paper).";
  barChart(
    get("buckets"),
    bars.map(({ kind, name, mean, error }) => ({
      name,
      short: name.split(" ")[1],
      value: mean,
      error,
      color: `var(--${kind})`,
    })),
    { height: 220, label: "attention by bucket of memory", text: percent },
  );
  for (const kind of new Set(bars.map((bar) => bar.kind))) {
    const node = element("span");
    node.append(
      element("i", { style: `color: var(--${kind})` }),
      `${KINDS[kind]} `,
      element("b", {}, percent(bars.filter((bar) => bar.kind === kind).reduce((sum, bar) => sum + bar.mean, 0))),
    );
    get("kinds").append(node);
  }
}

// The main chart is large, and has the score of the evaluation as a line; the others are in their groups.
function drawChart(board, chart) {
  if (chart.title !== DATA.main) {
    let series = chart.series;
    if (chart.title === "attention") series = series.map((line) => ({ ...line, color: `var(--${line.name})` }));
    board.add(get(`charts-${chart.group}`), { ...chart, series });
    return;
  }
  const lines = [...chart.lines];
  if (chart.score) lines.push({ ...chart.score, color: "var(--ink)" });
  board.add(get("main"), { ...chart, lines }, { height: 340 });
}

function drawCompression(board) {
  const bars = DATA.compression.map((line, index) => ({
    name: line.name,
    value: DATA.compressibility[index] ?? 0,
    color: colorOf(index),
  }));
  barChart(get("bylayer"), bars, { height: 200, label: "compression loss by layer" });
  board.add(get("overtime"), { title: "over the run", series: DATA.compression, include: [0, 0] }, { height: 175 });
}

function render() {
  if (DATA.charts.length) {
    const bands = DATA.stages.map((stage, index) => ({
      ...stage,
      label: `stage ${index + 1}`,
      plain: index % 2 === 0,
    }));
    const board = new Board(get("controls"), DATA.axes, { bands });
    for (const chart of DATA.charts) drawChart(board, chart);
    for (const chart of DATA.tasks) board.add(get("tasks"), chart, { height: 120 });
    if (DATA.compression.length) drawCompression(board);
  }
  if (DATA.buckets.bars) buckets();
  document.body.dataset.ready = "";
}
render();
stayLive(render);
