const data = JSON.parse(document.getElementById("data").textContent);
const { charts, config } = JSON.parse(document.getElementById("specs").textContent);
const root = document.documentElement, views = {}, brushed = new Map();

document.getElementById("theme").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};
const folds = [...document.querySelectorAll("section > details, .charts > details")].map(d => [d, d.getAttribute("name")]);
addEventListener("beforeprint", () => folds.forEach(([d]) => { d.wasOpen = d.open; d.removeAttribute("name"); d.open = true; }));
addEventListener("afterprint", () => folds.forEach(([d, name]) => { d.open = d.wasOpen; if (name) d.setAttribute("name", name); }));

// -- the table: sorting, filtering, CSV ---------------------------------------------------------------------

for (const head of document.querySelectorAll(".sortable th")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], column = head.cellIndex, down = head.ariaSort === "ascending";
  for (const other of head.parentNode.cells) other.ariaSort = null;
  head.ariaSort = down ? "descending" : "ascending";
  const key = row => row.cells[column].dataset.k ?? row.cells[column].textContent, sign = down ? -1 : 1;
  const order = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
  };
  body.append(...[...body.rows].sort((a, b) => order(key(a), key(b))));
};

const table = document.querySelector(".sortable"), rows = [...table.tBodies[0].rows];
const headers = [...table.tHead.rows[0].cells].map(cell => cell.textContent.toLowerCase());
const input = document.getElementById("filter"), clear = document.getElementById("clear");
const compare = { "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, ">": (a, b) => a > b, "=": (a, b) => a == b };

function condition(word) {
  const found = word.match(/^(.+?)(<=|>=|<|>|=)(.+)$/);
  const column = found ? headers.findIndex(name => name.startsWith(found[1])) : -1;
  if (column < 0) return row => row.textContent.toLowerCase().includes(word);
  const wanted = found[3], test = compare[found[2]];
  return row => {
    const text = row.cells[column].textContent.toLowerCase(), value = parseFloat(text);
    return isNaN(wanted) || isNaN(value) ? found[2] === "=" && text.includes(wanted) : test(value, parseFloat(wanted));
  };
}

function filter() {
  const tests = input.value.toLowerCase().split(/\s+/).filter(Boolean).map(condition), kept = [];
  for (const row of rows) {
    const number = Number(row.dataset.number);
    row.hidden = !tests.every(test => test(row)) || ![...brushed.values()].every(numbers => numbers.has(number));
    if (!row.hidden) kept.push(number);
  }
  const all = kept.length === rows.length;
  document.getElementById("count").textContent = all ? "" : `${kept.length} of ${rows.length} cells`;
  clear.hidden = all;
  for (const view of Object.values(views)) try { view.signal("kept", all ? null : kept).runAsync(); } catch { /* no cells in it */ }
}
input.oninput = filter;
clear.onclick = () => {
  input.value = "";
  brushed.clear();
  views.parallel?.data("brush_store", []).run();
  filter();
};
document.getElementById("csv").onclick = () => {
  const columns = Object.keys(data.cells[0] ?? {}), quote = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const kept = new Set(rows.filter(row => !row.hidden).map(row => Number(row.dataset.number)));
  const lines = data.cells.filter(cell => kept.has(cell.number)).map(cell => columns.map(name => quote(cell[name])).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([[columns.join(","), ...lines].join("\n") + "\n"], { type: "text/csv" }));
  link.download = `${data.study}.csv`;
  link.click();
};

// -- charts -------------------------------------------------------------------------------------------------

function brush(name, value) {
  const axes = value.axis ?? [], [low, high] = value.place ?? [];
  brushed.clear();
  for (const axis of axes) brushed.set(axis, new Set(charts.parallel.data.values
    .filter(point => point.axis === axis && point.place >= low && point.place <= high).map(point => point.number)));
  filter();
}

const small = matchMedia("(max-width: 520px)");  // legends in one column

async function draw(element) {
  const name = element.dataset.name, narrow = small.matches;
  views[name]?.finalize();
  const spec = { ...charts[name], width: "container", autosize: { type: "fit-x", contains: "padding" } };
  if (spec.data?.name === "cells") spec.datasets = { cells: data.cells };
  const legend = { ...config.legend, columns: narrow ? 1 : 3 };
  const axis = { ...config.axis, labelLimit: narrow ? 110 : 220 };
  const options = { config: { ...config, legend, axis }, renderer: "svg", downloadFileName: `${data.study}_${name}`,
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false } };
  try {
    views[name] = (await vegaEmbed(element, spec, options)).view;
    if (name === "parallel") views[name].addSignalListener("brush", brush);
  } catch (problem) { element.textContent = `This chart cannot be drawn: ${problem.message}`; }
}
async function drawAll() {
  for (const element of document.querySelectorAll(".chart")) if (element.clientWidth) await draw(element);
  document.body.dataset.drawn = Object.keys(views).length;
  filter();
}
small.onchange = () => { brushed.clear(); drawAll(); };
drawAll();
for (const [fold] of folds) fold.addEventListener("toggle", () => {
  for (const element of fold.querySelectorAll(".chart")) if (fold.open && !views[element.dataset.name]) draw(element);
});
