const data = JSON.parse(document.getElementById("data").textContent);
const { charts, config } = JSON.parse(document.getElementById("specs").textContent);
const root = document.documentElement, views = {}, brushed = new Map();

document.getElementById("theme").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
};
const folds = [...document.querySelectorAll("section > details")];
addEventListener("beforeprint", () => folds.forEach(d => { d.wasOpen = d.open; d.open = true; }));
addEventListener("afterprint", () => folds.forEach(d => { d.open = d.wasOpen; }));

// -- the table: sorting, filtering, reference, CSV ----------------------------------------------------------

for (const head of document.querySelectorAll(".sortable th")) head.onclick = () => {
  const body = head.closest("table").tBodies[0], column = head.cellIndex, down = head.ariaSort === "ascending";
  for (const other of head.parentNode.cells) other.ariaSort = null;
  head.ariaSort = down ? "descending" : "ascending";
  const worded = head.classList.contains("left"), sign = down ? -1 : 1;
  const key = row => {
    const cell = row.cells[column], text = cell.dataset.k ?? cell.textContent;
    return worded && isNaN(text) ? text : parseFloat(text);
  };
  const order = (a, b) => {
    if (a !== a || b !== b) return (a !== a) - (b !== b);
    return sign * (typeof a === "string" || typeof b === "string" ? String(a).localeCompare(b) : a - b);
  };
  body.append(...[...body.rows].sort((a, b) => order(key(a), key(b))));
  filter();
};

const table = document.querySelector(".sortable"), rows = [...table.tBodies[0].rows];
const headers = [...table.tHead.rows[0].cells].map(cell => cell.textContent.toLowerCase());
const input = document.getElementById("filter"), clear = document.getElementById("clear");
const compare = { "<=": (a, b) => a <= b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, ">": (a, b) => a > b, "=": (a, b) => a == b };

function words(text) {  // `validation > 85` is one word
  return text.toLowerCase().replace(/\s*(<=|>=|<|>|=)\s*/g, "$1").split(/[\s,]+/).filter(Boolean);
}
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

const step = 100, more = document.getElementById("more");
let limit = step;

function filter() {
  const tests = words(input.value).map(condition), kept = [];
  for (const row of table.tBodies[0].rows) {
    const number = Number(row.dataset.number);
    const fits = tests.every(test => test(row)) && [...brushed.values()].every(numbers => numbers.has(number));
    if (fits) kept.push(number);
    row.hidden = !fits || kept.length > limit;
  }
  const all = kept.length === rows.length;
  document.getElementById("count").textContent = all ? "" : `${kept.length} of ${rows.length} cells`;
  clear.hidden = all;
  more.hidden = kept.length <= limit;
  more.textContent = `first ${limit} of ${kept.length} rows: show ${Math.min(step, kept.length - limit)} more`;
  for (const view of Object.values(views)) try { view.signal("kept", all ? null : kept).runAsync(); } catch { /* no cells in it */ }
}
more.onclick = () => { limit += step; filter(); };
const versus = document.getElementById("reference"), first = headers.findIndex((name) => name.endsWith(" % interval")) - 1;
versus.onchange = () => {
  const name = versus.selectedOptions[0].textContent;
  table.tHead.rows[0].cells[first].textContent = `Δ vs ${name}`;
  headers[first] = `δ vs ${name.toLowerCase()}`;
  const found = data.references[versus.value];
  for (const row of rows) {
    const texts = found[row.dataset.number] ?? ["–", "–", "–"];
    texts.forEach((text, i) => { row.cells[first + i].textContent = text; });
    row.classList.toggle("reference", !found[row.dataset.number]);
  }
  filter();
};
input.oninput = filter;
clear.onclick = () => {
  input.value = "";
  brushed.clear();
  views.parallel?.data("brush_store", []).run();
  filter();
};
document.getElementById("csv").onclick = () => {
  const columns = Object.keys(data.cells[0] ?? {}), quote = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const tests = words(input.value).map(condition);
  const kept = new Set(rows.filter(row => tests.every(test => test(row))).map(row => Number(row.dataset.number))
    .filter(number => [...brushed.values()].every(numbers => numbers.has(number))));
  const lines = data.cells.filter(cell => kept.has(cell.number)).map(cell => columns.map(name => quote(cell[name])).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([[columns.join(","), ...lines].join("\n") + "\n"], { type: "text/csv" }));
  link.download = `${data.study}.csv`;
  link.click();
};

// -- charts -------------------------------------------------------------------------------------------------

function brush(name, value) {
  const parallel = charts.parallel, axes = views.parallel.scale("x").domain(), [low, high] = value.place ?? [];
  brushed.clear();
  for (const axis of value.axis ?? []) brushed.set(axis, new Set(parallel.data.values
    .filter(({ place }) => place[axes.indexOf(axis)] >= low && place[axes.indexOf(axis)] <= high).map(({ number }) => number)));
  filter();
}

const cut = () => document.querySelectorAll(".scroll").forEach(box =>
  box.classList.toggle("cut", box.scrollLeft + box.clientWidth < box.scrollWidth - 2));
document.querySelectorAll(".scroll").forEach(box => box.addEventListener("scroll", cut));
addEventListener("resize", cut);
for (const fold of folds) fold.addEventListener("toggle", cut);
cut();
const small = matchMedia("(max-width: 520px)");  // legends in one column

async function draw(element) {
  const name = element.dataset.name, narrow = small.matches;
  views[name]?.finalize();
  let spec = { ...charts[name], width: "container", autosize: { type: "fit-x", contains: "padding" } };
  if (spec.facet) {  // Vega-Lite fits no panels
    const columns = narrow ? 1 : spec.columns, room = element.clientWidth - Math.min(spec.usermeta.left, narrow ? 110 : 220);
    spec = { ...charts[name], columns, spec: { ...spec.spec, width: Math.max(room / columns - 24, 80) } };
  }
  spec.datasets = { cells: data.cells };
  const legend = { ...config.legend, columns: narrow ? 1 : 3 };
  const axis = { ...config.axis, labelLimit: narrow ? 110 : 220 };
  const options = { config: { ...config, legend, axis }, renderer: "svg", downloadFileName: `${data.study}_${name}`,
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false } };
  try {
    views[name] = (await vegaEmbed(element, spec, options)).view;
    if (name === "parallel") views[name].addSignalListener("brush", brush);
  } catch (problem) { element.textContent = `This chart cannot be drawn: ${problem.message}`; }
}
async function load() {  // Vega, packed
  const bytes = Uint8Array.from(atob(document.getElementById("library").textContent), sign => sign.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
}
async function drawAll() {
  for (const element of document.querySelectorAll(".chart")) if (element.clientWidth) await draw(element);
  document.body.dataset.drawn = Object.keys(views).length;
  filter();
}
small.onchange = () => { brushed.clear(); drawAll(); };
filter();
const ready = load().then(drawAll);
for (const fold of folds) fold.addEventListener("toggle", async () => {
  await ready;
  for (const element of fold.querySelectorAll(".chart")) if (fold.open && !views[element.dataset.name]) await draw(element);
});

// -- a study that runs: the page is written again ------------------------------------------------------------

const written = Number(document.body.dataset.written), state = JSON.parse(sessionStorage.getItem(location.href) ?? "null");
if (written && Date.now() / 1000 - written < 3600) setTimeout(function again() {
  if (input.value || brushed.size || document.activeElement === versus) return setTimeout(again, 15000);
  sessionStorage.setItem(location.href, JSON.stringify({ y: scrollY, open: folds.map(fold => fold.open) }));
  location.reload();
}, 15000);
if (state) {
  sessionStorage.removeItem(location.href);
  state.open.forEach((open, i) => { folds[i].open = open; });
  ready.then(() => scrollTo(0, state.y));
}
