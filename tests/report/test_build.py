"""The report as a whole: what is on the page, and that it is self-contained and honest."""

import base64
import gzip
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pandas as pd
import pytest

from fpl_tune import config, report
from fpl_tune.core.errors import ConfigError
from fpl_tune.findings.comparisons import compare
from fpl_tune.report import charts, table
from fpl_tune.report import page as page_of
from fpl_tune.report.panels import plain_table
from fpl_tune.study.grid import expand
from fpl_tune.study.results import make_result
from fpl_tune.study.table import OTHER_COLUMNS

from .conftest import findings_of, put


class Page(HTMLParser):
    """What the page would load, and what is not closed."""

    VOID = ("meta", "br", "link", "img", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.loads += [v for k, v in attrs if k in ("src", "href") and v and not v.startswith("#")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_needs_no_other_file(make_store):
    text = report.build(make_store()).read_text()
    page = Page(text)
    assert page.open == []
    assert page.loads == []
    assert "url(http" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text, "a browser refuses every request"
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert len(text) < 2e6
    packed = text.partition('id="library">')[2].partition("</script>")[0]
    assert b"window.vegaEmbed=" in gzip.decompress(base64.b64decode(packed)), "charts are drawn by what the page has"


def test_embedded_data_equal_the_result_table(make_store):
    store = make_store()
    findings = findings_of(store)
    text = report.build(store).read_text(encoding="utf-8")
    found = json.loads(text.partition('id="data">')[2].partition("</script>")[0])["cells"]
    summary = pd.DataFrame(store.table().summary()).set_index("label")
    assert len(found) == len(summary) == 4
    for cell in found:
        row = summary.loc[cell["label"]]
        assert (cell["mean"], cell["std"], cell["seeds"]) == (row["mean"], row["std"], row["n"])
        assert cell["validation"] == row["val/acc_mean"]
        assert cell["method_n_ctx"] == findings.frame.set_index("label").loc[cell["label"], "method.n_ctx"] or (
            cell["method_n_ctx"] is None
        )


def test_no_id_stands_for_a_name(make_store):
    body = f"axes: {{variant: [{{label: {'a' * 50}, method.n_ctx: 2}}, {{label: b, method.n_ctx: 4}}]}}\nseeds: 2\n"
    store = make_store(body=body)
    text = report.build(store).read_text(encoding="utf-8")
    assert not [cell.id for cell in store.cells() if cell.id in text]
    assert "cell 0" in text


def test_a_page_is_written_again_only_when_something_changed(make_store, monkeypatch):
    store = make_store()
    page = report.build(store)
    with monkeypatch.context() as patched:
        patched.setattr(page_of, "write", None)
        assert report.build(store) == page, "nothing was read"
    put(store, store.cells()[0], 1, split_hash="other")
    before = page.read_text(encoding="utf-8")
    assert report.build(store).read_text(encoding="utf-8") != before
    (store.folder / "table.md").unlink()
    report.build(store)
    assert (store.folder / "table.md").is_file()
    report.build(store, metric="val/acc_mean")
    assert page.read_text(encoding="utf-8") != before, "options are part of the state"


def test_figures_are_written_on_request_alone(make_store):
    store = make_store()
    report.build(store)
    assert not (store.folder / "figures").exists()
    report.build(store, figures=True)
    starts = {"svg": b"<svg", "png": b"\x89PNG", "pdf": b"%PDF"}
    for kind, start in starts.items():
        assert (store.folder / "figures" / f"curve.{kind}").read_bytes().startswith(start)


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


USER = """
<script>
(async () => {
  const wait = async found => { while (!found()) await new Promise(next => setTimeout(next, 50)); };
  await wait(() => document.body.dataset.drawn);
  const seen = { drawn: document.body.dataset.drawn }, input = document.getElementById("filter"), first = views.curve;
  const shown = () => [...table.tBodies[0].rows].filter(row => !row.hidden).map(row => row.cells[0].textContent);
  const mark = (name, kind) => document.querySelector(`#chart-${name} .${kind} path`);
  seen.all = shown();
  input.value = "n_ctx = 2 validation > 0";
  input.oninput();
  seen.filtered = [shown(), first.signal("kept"), document.getElementById("count").textContent];
  URL.createObjectURL = blob => { seen.blob = blob; return "#"; };
  HTMLAnchorElement.prototype.click = function () { seen.file = this.download; };
  document.getElementById("csv").onclick();
  seen.csv = (await seen.blob.text()).trim().split("\\n").length;
  clear.onclick();
  seen.cleared = shown().length;
  versus.value = seen.all[1];
  versus.onchange();
  const column = headers.indexOf("95 % interval") - 1;
  const texts = rows.slice(0, 2).map(row => row.cells[column].textContent);
  seen.versus = [table.tHead.rows[0].cells[column].textContent, ...texts];
  for (let clicks = 0; clicks < 2; clicks++) table.tHead.rows[0].cells[0].onclick();
  seen.sorted = shown();
  const { width, height } = views.parallel._el.querySelector("svg").viewBox.baseVal;
  await views.parallel.signal("brush_x", [0, width]).signal("brush_y", [0, height / 3]).runAsync();
  seen.brushed = [shown().length, brushed.size];
  clear.onclick();
  seen.unbrushed = shown().length;
  const point = mark("curve", "mark-symbol.role-mark"), { x, y } = point.getBoundingClientRect();
  for (const kind of ["pointerover", "pointermove"]) point.dispatchEvent(
    new PointerEvent(kind, { bubbles: true, clientX: x + 2, clientY: y + 2 }));
  await wait(() => document.getElementById("vg-tooltip-element")?.textContent);
  seen.tip = document.getElementById("vg-tooltip-element").textContent;
  mark("curve", "role-legend-symbol").dispatchEvent(new MouseEvent("click", { bubbles: true }));
  await views.curve.runAsync();
  seen.legend = [...new Set(views.curve.data("shown_store").map(({ values }) => values[0]))];
  seen.menu = [...document.querySelectorAll("#chart-curve .vega-actions a")].map(link => link.download);
  seen.svg = (await views.curve.toSVG()).slice(0, 4);
  seen.png = (await views.curve.toImageURL("png")).slice(0, 22);
  document.getElementById("theme").onclick();
  seen.theme = document.documentElement.dataset.theme;
  document.body.dataset.seen = JSON.stringify(seen);
})().catch(problem => { document.body.dataset.seen = JSON.stringify(`${problem} ${Object.keys(views)}`); });
</script></body></html>"""


@pytest.mark.system
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_browser_draws_every_chart_and_a_user_filters_sorts_brushes_hovers_and_downloads(make_store, tmp_path):
    body = "axes: {method: {n_ctx: [2, 4, 8]}, optim: {lr: [0.01, 0.1]}, protocol: {epochs: [1, 2]}}\nseeds: 2\n"
    page = report.build(make_store(body=body))
    text = page.read_text(encoding="utf-8")
    charts = json.loads(text.partition('id="specs">')[2].partition("</script>")[0])["charts"]
    page.write_text(text.removesuffix("</body></html>") + USER, encoding="utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--window-size=1400,900", "--virtual-time-budget=60000", "--dump-dom", page.as_uri()]  # fmt: skip
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found is not None
    seen = json.loads(html.unescape(found[1]))
    assert isinstance(seen, dict), seen
    assert seen["drawn"] == str(len(charts))
    assert "This chart cannot be drawn:" not in dom.replace("This chart cannot be drawn: ${", ""), "but in the script"
    rows, kept, count = seen["filtered"]
    assert len(seen["all"]) == seen["cleared"] == seen["unbrushed"] == 12
    assert rows == [name for name in seen["all"] if "n_ctx=2" in name]
    assert (len(kept), count, seen["csv"], seen["file"]) == (4, "4 of 12 cells", 5, "toy.csv")
    head, first, own = seen["versus"]
    assert (head, own) == (f"Δ vs {seen['all'][1]}", "–")
    assert re.fullmatch(r"[+-]\d+\.\d\d", first)
    assert seen["sorted"] == sorted(seen["all"], reverse=True)
    assert 0 < seen["brushed"][0] < 12
    assert seen["brushed"][1] > 0
    assert "n_ctx" in seen["tip"]
    assert len(seen["legend"]) == 1, "the same series in each panel"
    assert seen["menu"] == ["toy_curve.svg", "toy_curve.png"]
    assert (seen["svg"], seen["png"]) == ("<svg", "data:image/png;base64,")
    assert seen["theme"] in ("light", "dark")


def test_unfinished_and_failed_cells_are_named(make_store):
    store = make_store(fill=lambda cell, seed: cell.number == 1 or (cell.number == 0 and seed == 1))
    failed = store.cells()[2]
    store.put(failed, 1, make_result("failed", [], error="x"))
    findings = findings_of(store)
    assert findings.frame["status"].tolist() == ["queued", "done", "queued", "queued"]
    assert findings.frame["n"].tolist() == [1, 3, 0, 0]
    shown = table.table(findings, compare(findings))
    assert [row.cells[shown.header.index("status")].text for row in shown.rows] == findings.frame["status"].tolist()


def test_a_study_without_results_still_has_a_page(make_store):
    text = report.build(make_store(fill=lambda cell, seed: False)).read_text()
    assert "0 of 4" in text


def test_tables_agree_with_each_other(make_store):
    store = make_store()
    report.build(store)
    findings = findings_of(store)
    numbers = pd.read_csv(store.folder / "table.csv", index_col="cell")
    assert numbers["mean"].tolist() == pytest.approx(findings.frame["mean"].tolist(), rel=1e-12)
    assert {"difference_low", "verdict"} <= set(numbers)
    markdown = (store.folder / "table.md").read_text().splitlines()
    latex = (store.folder / "table.tex").read_text()
    for cell in store.cells():
        figure = f"{100 * findings.frame.loc[cell.id, 'mean']:.2f}"
        assert any(line.strip("| *").startswith(cell.label) and figure in line for line in markdown)
        assert figure in latex
    assert latex.count("{") == latex.count("}")


def test_a_pipe_in_a_name_does_not_end_a_column_in_markdown():
    heads, _, row, *_ = table.markdown([plain_table(["method", "a|b"], [["c|d", "0.5"]])], "").splitlines()
    for line, texts in ((heads, ["method", "a|b"]), (row, ["c|d", "0.5"])):
        columns = re.split(r"(?<!\\)\|", line)[1:-1]
        assert [text.strip().replace("\\|", "|") for text in columns] == texts


def test_no_axis_takes_the_name_of_a_column(make_store):
    """Which would be overwritten: the axis `arm` stands for any name."""
    body = (
        "axes: {arm: [{label: few, data.shots: 2}, {label: many, data.shots: 4}]}\nseeds: until_decided\nlooks: [2, 3]"
    )
    store = make_store(body=body, name="arms")
    findings = findings_of(store)
    compared, summary = compare(findings), store.table().summary()[0]
    rows = [store.table().by_seed()[0], summary, charts.cell_rows(findings)[0], findings.frame, compared.frame]
    columns = {name for each in rows for name in each} | {*table.table(findings, compared).header}
    words = {name for name in columns if name.isidentifier()} | {"time", "group", "MB"}  # which a table may leave out
    assert words == OTHER_COLUMNS | {"arm"}
    for name in OTHER_COLUMNS:
        with pytest.raises(ConfigError, match=f"tables have a column '{name}' already. Rename axes.{name}"):
            make_store(body=body.replace("arm", name), name=f"named_{name}")


def test_out_folder_takes_all_files(make_store, tmp_path):
    store = make_store()
    page = report.build(store, tmp_path / "elsewhere")
    assert page == tmp_path / "elsewhere" / "report.html"
    assert (tmp_path / "elsewhere" / "table.tex").is_file()
    assert not (store.folder / "report.html").exists()


def test_resolved_study_runs_the_same_cells(make_store):
    """What the page gives as the reproduction command."""
    store = make_store(["optim.momentum=0.5"])
    spec = config.compose_study(str(store.folder / "study.yaml"))
    assert [c.id for c in expand(spec)] == [c.id for c in store.cells()]


def test_what_the_user_writes_is_text(make_store):
    body = (
        "title: '<b> costs $5_{x and {y} \\frac$'\nseeds: 2\n"
        "axes: {variant: [{label: 'a $b_{c', method.n_ctx: 2}, {label: '</script><img src=x>', method.n_ctx: 4}], "
        "optim: {lr: [0.001, 0.01, 0.1]}}\n"
    )
    page = report.build(make_store(body=body)).read_text(encoding="utf-8")
    assert "a $b_{c" in page
    assert "<h1>&lt;b&gt; costs $5_{x and {y}" in page
    assert "&lt;/script&gt;&lt;img" in page, "a label, which scripts hold too"
    assert "<img src=x" not in page
