// Shared by all pages: elements, numbers as text, updates of an open page, packed arrays. No libraries, no network.
"use strict";

const get = (id) => document.getElementById(id);

// Colors of lines in style.css; all cores of a suite have different ones.
const COLORS = 12;
const colorOf = (index) => `var(--s${index % COLORS})`;

// What a size is counted in, and its sign.
function unitOf(size) {
  if (size >= 1e9) return [1e9, " G"];
  if (size >= 1e6) return [1e6, " M"];
  if (size >= 1e4) return [1e3, " k"];
  return [1, ""];
}

// A number as people read it.
function readable(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const short = (number) => number.toFixed(size < 10 ? 1 : 0).replace(/\.0$/, "");
  if (size >= 1e9) return (value / 1e9).toFixed(1).replace(/\.0$/, "") + " G";
  if (size >= 1e6) return (value / 1e6).toFixed(1).replace(/\.0$/, "") + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(0) + " k";
  if (size >= 100 || Number.isInteger(value)) return short(value);
  if (size >= 0.01) return String(Number(value.toPrecision(3)));
  return value === 0 ? "0" : value.toExponential(1).replace(".0e", "e").replace("e-", "e−");
}

// A value and the ends of its interval with the digits that the interval's width allows, as `with_interval` of
// `reports/tables.py` has them.
function withInterval(value, low, high) {
  const numbers = [value, low, high];
  const width = high - low;
  if (!(width > 0) || Math.max(...numbers.map(Math.abs)) >= 1e6) return numbers.map(readable);
  const decimals = Math.min(6, Math.max(0, Math.ceil(-Math.log10(width / 5))));
  return numbers.map((number) => {
    const text = number.toFixed(decimals);
    return Number(text) === 0 ? text.replace("-", "") : text;
  });
}

function element(name, attributes = {}, text = null) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

function shape(name, attributes = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

// What the reader has chosen for all charts of a page; it outlives an update of the page.
const CHOSEN = { axis: "x", smoothing: 0.5 };

// Groups that open, of this page: printed open. A chart that was never shown has no size yet, and an observer of sizes
// would be too late, so all are drawn at once.
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details.group:not([open])")];
  for (const group of closed) group.open = true;
  for (const svg of document.querySelectorAll("svg")) svg.redraw?.();
});
window.addEventListener("afterprint", () => {
  for (const group of closed) group.open = false;
});

// On a page of `compressive watch`: reads the page again every few seconds, and shows what has changed. Open groups and
// the focus stay as they are.
function stayLive(render) {
  if (!DATA.live) return;
  setInterval(async () => {
    let text = "";
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      text = answer.ok ? await answer.text() : "";
    } catch {
      /* the server has ended */
    }
    document.body.classList.toggle("lost", !text);
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const data = fresh.getElementById("data");
    if (!data || data.textContent === get("data").textContent) return;
    if (selectsCode()) return; // an update would end the selection, which is about to be copied
    const restoreGroups = keepGroups();
    const restoreFocus = keepFocus();
    document.querySelector("main").replaceWith(fresh.querySelector("main"));
    restoreGroups();
    get("data").textContent = data.textContent;
    DATA = JSON.parse(data.textContent);
    render();
    restoreFocus();
  }, 1000 * DATA.live);
}

function selectsCode() {
  const selection = getSelection();
  if (selection.isCollapsed) return false;
  const node = selection.anchorNode;
  const around = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement;
  return Boolean(around.closest("code"));
}

// Returns what opens and closes groups of a new page as they are now. Groups without an id are told by their order.
function keepGroups() {
  const all = () => [...document.querySelectorAll("details")].map((details, index) => [details.id || index, details]);
  const open = new Map(all().map(([key, details]) => [key, details.open]));
  return () => {
    for (const [key, details] of all()) details.open = open.get(key) ?? details.open;
  };
}

// Returns what gives the focus to that element of a new page which has it now, by its id or its order.
function keepFocus() {
  const all = () => [...document.querySelectorAll("main :is(a, button, input, select, summary, [tabindex])")];
  const focused = document.activeElement;
  const index = all().indexOf(focused);
  if (index < 0) return () => {};
  return () => (focused.id ? get(focused.id) : all()[index])?.focus({ preventScroll: true });
}

// The array that `packed` of the Python side deflated; kind is Uint8Array, Int32Array or alike.
async function unpacked(text, kind) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new kind(await new Response(stream).arrayBuffer());
}
