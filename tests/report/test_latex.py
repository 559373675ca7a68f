"""The table in LaTeX: its structure, what is bold, and text that LaTeX reads as text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fpl_tune import report
from fpl_tune.findings.comparisons import compare
from fpl_tune.report import latex
from fpl_tune.study.store import Store

from ..conftest import there
from .conftest import amend, findings_of, typeset

VARIANTS = """
axes:
  variant:
    - {label: PromptFL, method: promptfl}
    - {label: A_B, method: fedpgp}
    - {label: CoOp, method: coop}
  partition: [disjoint, iid]
references: [{method: zeroshot}]
seeds: 2
"""


SIGNS = r"A_B & 50 % #1 ~^ {x} \y $z$ <λ> “q” → ≤ ∞ − ² · ±"


def written(store):
    """The comment, the lines between the rules, and the fields of the body's rows; a booktabs table that is whole."""
    report.build(store)
    text = (store.folder / "table.tex").read_text(encoding="utf-8")
    comment, begin, *lines, end = text.splitlines()
    assert comment.startswith("% ")
    assert end == r"\end{tabular}"
    assert [text.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [1, 1, 1]
    assert (lines[0], lines[-1]) == (r"\toprule", r"\bottomrule")
    assert text.count("{") == text.count("}")
    columns = len(there(re.fullmatch(r"\\begin{tabular}{([lcr]+)}", begin))[1])
    for line in lines[1:-1]:
        spanned = sum(int(n) - 1 for n in re.findall(r"\\multicolumn{(\d+)}", line))
        assert len(re.findall(r"(?<!\\)&", line)) + 1 + spanned == columns
        assert re.search(r"\\\\( \\(midrule|cmidrule\(lr\){2-\d+}))?$", line), line
    rule = next(i for i, line in enumerate(lines) if line.endswith(r"\midrule"))
    return comment, lines[1 : rule + 1], [line.removesuffix(r" \\").split(" & ") for line in lines[rule + 1 : -1]]


@pytest.mark.system
@pytest.mark.parametrize(
    "body",
    [VARIANTS.replace("A_B", f"'{SIGNS}'"), f"axes: {{variant: [{{label: '{SIGNS}', method: coop}}]}}\nseeds: 2"],
    ids=["crossed", "listed"],
)
def test_a_table_compiles(make_store, body):
    store = make_store([f"title='{SIGNS}'", "report.metric=comm/total_bytes"], body=body)
    report.build(store)
    typeset(store.folder, "table")


def test_methods_are_rows_and_settings_are_columns(make_store):
    store = make_store(body=VARIANTS, level=lambda cell: 0.5 + 0.01 * cell.number)
    comment, head, rows = written(store)
    findings = findings_of(store)
    assert [line.split(r" \\")[0] for line in head] == [
        r" & \multicolumn{2}{c}{test accuracy (\%)}", " & disjoint & iid",
    ]  # fmt: skip
    assert [row[0] for row in rows] == ["PromptFL", r"A\_B", "CoOp", "zeroshot"]
    for row, name in zip(rows, ["PromptFL", "A_B", "CoOp", "zeroshot"], strict=True):
        for text, column in zip(row[1:], ["disjoint", "iid"], strict=True):
            (cell,) = [cell for cell in findings.cells if cell.label == f"{name}, {column}"]
            mean, std = findings.spread(cell, findings.metric)
            assert f"{100 * mean:.2f} $\\pm$ {100 * std:.2f}" in text
    assert "The best cell (bold) is chosen by validation accuracy." in comment
    assert "Mean ± standard deviation over seeds of the mean over clients; " in comment
    assert "n = 2 seeds" in comment


def test_a_method_of_the_axis_of_methods_may_have_a_row_name_of_its_own(make_store):
    ours = "{label: Ours, method: coop, method.n_ctx: 2}"
    _, _, rows = written(
        make_store(body=f"axes: {{method: [promptfl, {ours}], partition: [disjoint, iid]}}\nseeds: 2\n")
    )
    assert [row[0] for row in rows] == ["promptfl", "Ours"]


@pytest.mark.parametrize("metric", ["test/acc_mean", "train/loss"])
def test_bold_is_what_validation_chooses_as_on_the_page(make_store, metric):
    """CoOp is best on test images, and A_B on those of validation."""
    store = make_store([f"report.metric={metric}"], body=VARIANTS)
    levels = {"CoOp": (0.5, 0.9), "A_B": (0.8, 0.6)}
    val, test = (lambda cell, i=i: levels.get(cell.label.partition(",")[0], (0.4, 0.4))[i] for i in (0, 1))
    amend(store, val__acc_mean=val, test__acc_mean=test)
    _, _, rows = written(store)
    assert [row[0] for row in rows if all(text.startswith(r"\textbf{") for text in row[1:])] == [r"A\_B"]
    assert sum("textbf" in text for row in rows for text in row) == 2
    page = (store.folder / "table.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| \*\*(.*?)\*\* \|", page, re.M)) == {"A_B, disjoint", "A_B, iid"}


@pytest.mark.parametrize("body", [VARIANTS, "axes: {method.n_ctx: [1, 2, 4]}\nreferences: [{method: zeroshot}]\n"])
def test_what_does_not_vary_by_chance_has_no_deviation_no_verdict_and_no_bold(make_store, body):
    store = make_store(["report.metric=comm/total_bytes"], body=body)
    amend(store, comm__up_bytes=lambda cell: 1e6 * (1 + cell.number))
    written(store)
    tables = [(store.folder / f"table.{kind}").read_text(encoding="utf-8") for kind in ("md", "tex")]
    for text in tables:
        assert not re.search(r"±|\\pm|\*\*|textbf|better|worse|undecided", text)
        assert "It does not vary by chance over seeds" in text
    findings = findings_of(store)
    assert findings.kind == "table", "no plateau of costs"
    assert not findings.letters
    frame = compare(findings).frame
    assert set(frame["verdict"]) <= {"higher", "lower", "identical"}
    assert frame[["low", "high"]].isna().all(axis=None)
    assert (frame["difference"] > 0).eq(frame["verdict"] == "higher").all()


@pytest.mark.parametrize(("images", "said"), [(20, True), (49, True), (50, False)])
def test_steps_of_accuracies_on_few_images_are_said_at_every_table(make_store, images, said):
    store = make_store(body=VARIANTS)
    amend(store, test__images=lambda cell: images if cell.label.endswith("iid") else 1000)
    comment, _, _ = written(store)
    step = f"The test set has only {images} images a seed, so accuracies move in steps of {100 / images:.2g} points"
    assert (step in comment) == said
    assert (step in (store.folder / "table.md").read_text(encoding="utf-8")) == said


def test_cells_without_a_result_and_cells_that_were_stopped_early_are_dashes(make_store):
    store = make_store(body=VARIANTS, fill=lambda cell, seed: cell.label != "CoOp, iid")
    _, _, rows = written(store)
    assert rows[2][2] == "--"
    assert rows[2][1] != "--"
    (lost,) = (cell for cell in store.cells() if cell.label == "PromptFL, disjoint")
    (store.folder / "cells" / lost.id / "cell.json").unlink()
    _, _, rows = written(Store(store.root, store.name))
    assert [[text == "--" for text in row[1:]] for row in rows[:3]] == [[True, False], [False, False], [False, True]]


def test_a_reference_that_trains_nothing_stands_under_every_schedule(make_store):
    body = VARIANTS.replace("partition: [disjoint, iid]", "protocol: {epochs: [1, 2]}")
    _, head, rows = written(make_store(body=body))
    assert head[1].startswith(" & epochs=1 & epochs=2 ")
    assert rows[-1][0] == "zeroshot"
    assert rows[-1][1] == rows[-1][2] != "--"


@pytest.mark.parametrize(
    "axes",
    ["axes: {method.n_ctx: [2, 4], partition: [disjoint, iid]}", "axes: {method: [promptfl, coop], optim.lr: [0.1, 1]}",
     "axes: {method: [promptfl, coop]}",
     "axes: {method: [coop, fedpgp], partition: [iid, shared], data.shots: [1, 2]}"],
    ids=["numbers", "no setting", "one axis", "three axes"],
)  # fmt: skip
def test_other_studies_have_the_columns_of_the_page(axes, make_store):
    _, head, rows = written(make_store(body=f"{axes}\nseeds: 2\n"))
    assert len(head) == 1
    assert head[0].startswith(r"cell & validation accuracy (\%) & ")
    assert len(rows) == len(findings_of(make_store(body=f"{axes}\nseeds: 2\n")).cells)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("FedPGP β=1", r"FedPGP $\beta$=1"),
        ("λ → Δ", r"$\lambda$ $\to$ $\Delta$"),
        ("Δ_1", r"$\Delta$\_1"),
        ("ρ²", r"$\rho$$^2$"),
    ],
)
def test_latex_has_symbols_for_greek_letters_and_signs(text, code):
    assert latex.text_of(text) == code


@given(st.text(alphabet="a\\{}$&#%_~^", max_size=12))
def test_text_leaves_no_bare_special_character(text):
    escaped = latex.text_of(text)
    for known in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}"):
        escaped = escaped.replace(known, "")
    assert not re.search(r"(?<!\\)[{}$&#%_~^]", escaped)
