// The charts of a comparison; included by `comparison.html`.
CHOSEN.smoothing = 0;
CHOSEN.filters = {};

function render() {
  const within = (index) =>
    Object.entries(CHOSEN.filters).every(([name, value]) => !value || DATA.filters[name][index] === value);
  const kept = (lines) => lines.filter((line) => within(line.index));
  for (const id of ["controls", "panels", "scores", "profile"]) get(id)?.replaceChildren();
  const board = new Board(get("controls"), { x: DATA.unit }, { height: 260 });
  for (const [name, values] of Object.entries(DATA.filters)) {
    const label = element(
      "label",
      {},
      name.endsWith(".core.name") ? "core" : name.split(".").pop().replaceAll("_", " "),
    );
    const select = element("select", { title: name });
    select.append(element("option", { value: "" }, "all"));
    for (const value of new Set(values)) select.append(element("option", { value }, value));
    select.value = CHOSEN.filters[name] || "";
    select.addEventListener("input", () => {
      CHOSEN.filters[name] = select.value;
      render();
      get("controls").querySelector(`[title="${name}"]`).focus();
    });
    label.append(select);
    get("controls").append(label);
  }
  for (const chart of DATA.panels) board.add(get("panels"), { ...chart, series: kept(chart.series) });
  if (get("profile")) {
    const [low, high] = [DATA.profiles[0].x[0], DATA.profiles[0].x[100]];
    new Board(element("div"), { x: "score" }).add(
      get("profile"),
      {
        title: "performance profile",
        unit: `share of runs by ${DATA.scale}`,
        include: [0, 1],
        series: kept(DATA.profiles),
      },
      { height: 220, domain: [low, high], unread: true, raw: true },
    );
  }
  const colored = kept(DATA.scores).map((row) => ({ ...row, color: colorOf(row.index) }));
  const bestFirst = colored.sort((a, b) => (DATA.lower ? a.value - b.value : b.value - a.value));
  dotChart(get("scores"), bestFirst, { lines: DATA.lines, label: `${DATA.finished ? "Final" : "Last"} ${DATA.scale}` });
  for (const row of document.querySelectorAll("tr[data-variant]")) row.hidden = !within(Number(row.dataset.variant));
  DATA.scores.forEach(({ index }) => {
    for (const cell of document.querySelectorAll(`#improvements tr > :nth-child(${index + 2})`))
      cell.hidden = !within(index);
  });
  document.body.dataset.ready = "";
}
render();
stayLive(render);
