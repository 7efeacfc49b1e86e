// The overview of runs: rows that are sorted and filtered; included by `runs.html`.
CHOSEN.sort = { key: "", descending: false }; // in the order in which they are sent

// Sorts the rows of all groups by what is chosen; rows without a value are the last.
function sortRows() {
  const { key, descending } = CHOSEN.sort;
  const tables = document.querySelectorAll(".data");
  tables.forEach((table, index) => {
    for (const head of table.querySelectorAll("th[data-key]")) {
      const order = descending ? "descending" : "ascending";
      head.setAttribute("aria-sort", head.dataset.key === key ? order : "none");
    }
    const { rows } = DATA.groups[index];
    const nodes = ROWS[index].map((node, place) => ({ node, value: key ? rows[place].sort[key] : place }));
    nodes.sort((a, b) => compare(a.value, b.value, descending));
    table.tBodies[0].append(...nodes.map(({ node }) => node));
  });
  if (get("order")) get("order").value = `${key} ${descending}`;
}

function compare(a, b, descending) {
  if (a === "" || b === "") return Number(a === "") - Number(b === "");
  const sign = descending ? -1 : 1;
  if (typeof a === "number") return sign * (a - b);
  return sign * a.localeCompare(b, undefined, { numeric: true });
}

// The first click sorts by a column, the second the other way round.
function choose(key) {
  const column = DATA.columns.find((each) => each.key === key);
  const first = Boolean(column.descending);
  const again = CHOSEN.sort.key === key && CHOSEN.sort.descending === first;
  CHOSEN.sort = { key, descending: again ? !first : first };
  sortRows();
}

// Copies the command beside a button. Where a page may not, the command is selected, to be copied by hand.
async function copy(button) {
  const command = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(command.title);
    button.textContent = "Copied";
  } catch {
    command.textContent = command.title;
    getSelection().selectAllChildren(command);
    button.textContent = "Selected";
  }
  setTimeout(() => (button.textContent = "Copy"), 3000);
}

document.addEventListener("click", ({ target }) => {
  const head = target.closest("th[data-key]");
  if (head && target.closest(".sort")) choose(head.dataset.key);
  const button = target.closest(".copy");
  if (button) copy(button);
});

let ROWS = []; // of each table, in the order of its data

function render() {
  ROWS = [...document.querySelectorAll(".data")].map((table) => [...table.tBodies[0].rows]);
  if (get("order")) {
    get("order").append(element("option", { value: " false" }, "newest first"));
    for (const { key, text, descending = false } of DATA.columns) {
      if (!key) continue;
      for (const each of [descending, !descending]) {
        get("order").append(
          element("option", { value: `${key} ${each}` }, `${text}, ${each ? "descending" : "ascending"}`),
        );
      }
    }
    get("order").addEventListener("input", () => {
      const [key, descending] = get("order").value.split(" ");
      CHOSEN.sort = { key, descending: descending === "true" };
      sortRows();
    });
  }
  sortRows();
  document.body.dataset.ready = "";
}
render();
stayLive(render);
