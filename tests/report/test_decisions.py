"""What a study decides: sections of the page, figures recomputed by other code, rules of selection, bad input."""

from __future__ import annotations

import json
import math
import re
import shlex

import numpy as np
import pandas as pd
import pytest

from fpl_tune import analysis, config
from fpl_tune.report import answer, build, curves, robustness, table
from fpl_tune.report.facts import Facts
from fpl_tune.report.reference import against, narrowed
from fpl_tune.study.cells import expand

SWEEP = """axes: {method.n_ctx: [1, 2, 4, 8]}
references: [{method: zeroshot}]
seeds: 3
"""


def clients(store, label, seed):
    (cell,) = [cell for cell in store.cells() if cell.label == label]
    return store.history(cell, seed)[-1]["clients/test"]


def test_three_numbers_of_a_report_recomputed(make_store):
    """Difference and interval of a comparison, and the corrected value of the winner, from the records by hand."""
    store = make_store(body=SWEEP, level=lambda cell: 0.5 + 0.02 * cell.number)
    facts = Facts(store)
    tests = against(facts)
    gaps = []
    for seed in (1, 2, 3):
        ours, theirs = clients(store, "n_ctx=8", seed), clients(store, "zeroshot", seed)
        gaps.append(sum(x - y for x, y in zip(ours, theirs, strict=True)) / len(ours))
    mean = sum(gaps) / 3
    table = np.array([[np.mean(clients(store, c.label, s)) for s in (1, 2, 3)] for c in store.cells()])
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    reference = [c.label for c in store.cells()].index("zeroshot")
    differences = np.delete(table, reference, 0) - table[reference]
    pooled = max(2 * (rest**2).sum() / 8, differences.var(axis=1, ddof=1).mean())
    corrected = 3.2060 * math.sqrt(pooled / 3)  # t(1 - 0.05 / 8, 8)
    half = max(corrected, 4.302652729911275 * float(np.std(gaps, ddof=1)) / math.sqrt(3))
    (cell,) = [c for c in store.cells() if c.label == "n_ctx=8"]
    row = tests.loc[cell.id]
    assert row["difference"] == pytest.approx(mean)
    assert row["high"] == pytest.approx(mean + half, abs=1e-4)
    section = robustness.choice(facts, tests)
    assert section is not None
    val = {(c.label, s): store.result(c, s)["rules"]["final"] for c in facts.own for s in (1, 2, 3)}
    picked = []
    for seed in (1, 2, 3):
        others = [s for s in (1, 2, 3) if s != seed]
        winner = max((c.label for c in facts.own), key=lambda n: sum(val[n, s]["val/acc_mean"] for s in others))
        picked.append(val[winner, seed]["test/acc_mean"])
    assert section.tables[0].rows[1].cells[2].text == f"{100 * sum(picked) / 3:.2f}"


def test_the_page_says_what_is_decided_and_what_more_seeds_decide(make_store):
    store = make_store(body=SWEEP, level=lambda cell: 0.5 + 0.03 * cell.number)
    page = build(store).read_text(encoding="utf-8")
    assert "Sources of variation" not in page, "three seeds are too few"
    facts = Facts(store)
    tests = against(facts)
    section = answer.decided(facts, tests)
    assert section is not None
    assert section.texts[0].startswith(f"Of {len(tests)} comparisons with zeroshot: ")
    (command,) = section.code
    assert re.fullmatch(rf"fpl-tune study {store.folder}/study.yaml seeds=\d+( 'axes.*')?", command)
    spec = config.compose_study(str(store.folder / "study.yaml"), shlex.split(command)[3:])
    assert {cell.id for cell in expand(spec)} <= {cell.id for cell in store.cells()}, "of the same settings"
    gap = tests.loc[facts.best.id, "difference"] if facts.best else 0
    assert f"{100 * gap:+.2f} points against zeroshot" in answer.sentence(facts, tests)


def test_more_seeds_are_advised_for_the_open_cells_alone(make_store, compose):
    body = "axes: {method.n_ctx: [1, 2, 4, 8], optim.lr: [0.01, 0.1]}\n"
    body += "references: [{method: zeroshot, optim.lr: 0.1}]\n"
    facts = Facts(make_store(["seeds=3"], body=body))
    ids = {cell.label: cell.id for cell in facts.cells}
    some = [ids["n_ctx=2, lr=0.1"], ids["n_ctx=8, lr=0.1"], ids["zeroshot, lr=0.1"]]
    assert narrowed(facts, some) == "'axes.method.n_ctx=[2,8]' 'axes.optim.lr=[0.1]'"
    assert narrowed(facts, list(ids.values())) == ""
    spec = compose(body, *shlex.split(narrowed(facts, some)))
    assert [cell.label for cell in expand(spec)] == ["n_ctx=2, lr=0.1", "n_ctx=8, lr=0.1", "zeroshot, lr=0.1"]
    frame = facts.values
    close = {"n_ctx=2, lr=0.1": 0.004, "n_ctx=8, lr=0.1": 0.0042}
    noise = {1: 0.001, 2: -0.002, 3: 0.001}
    base = frame[frame["cell"] == ids["zeroshot, lr=0.1"]].set_index(["seed", "client"])["value"]
    gaps = {ids[name]: close.get(name, 0.3) for name in ids if name != "zeroshot, lr=0.1"}
    rows = [{"cell": key, "seed": s, "client": c, "value": v / 2 + gap + 2 * noise[s] * (gap < 0.1)}
            for key, gap in {**gaps, ids["zeroshot, lr=0.1"]: 0.0}.items() for (s, c), v in base.items()
            if key != ids["zeroshot, lr=0.1"]]  # fmt: skip
    rows += [{"cell": ids["zeroshot, lr=0.1"], "seed": s, "client": c, "value": v / 2} for (s, c), v in base.items()]
    drawn = pd.DataFrame(rows)
    advice = analysis.advise(
        drawn,
        analysis.compare(drawn, ids["zeroshot, lr=0.1"]),
        study="toy",
        narrow=lambda cells: narrowed(facts, cells),
    )
    assert set(advice.cells) == {ids[name] for name in close}
    assert advice.text.endswith(f"fpl-tune study toy seeds={advice.seeds} {narrowed(facts, some)}")


def test_one_seed_is_said_and_no_figure_is_made_of_it(make_store):
    facts = Facts(make_store(["seeds=1"], body=SWEEP))
    tests = against(facts)
    assert set(tests["verdict"]) == {"undecided"}
    assert tests[["low", "high"]].isna().to_numpy().all()
    assert "one seed allows no interval" in answer.sentence(facts, tests)
    assert robustness.variation(facts, tests) is None
    chosen = robustness.choice(facts, tests)
    assert chosen is not None
    assert "Limits: 1 seed: no correction." in chosen.texts
    assert chosen.tables[0].rows[1].cells[2].text == "–"


def test_nothing_explains_what_does_not_vary_and_few_trials_say_so(make_store):
    body = "axes: {method.n_ctx: [1, 2, 4], optim.lr: [0.1, 0.2]}\nseeds: 2\n"
    facts = Facts(make_store(body=body, level=lambda cell: 0.1 + 0.2))
    for cell in facts.cells:
        facts.table.loc[cell.id, "val"] = 0.3 + 1e-17 * cell.number
    found = curves.importance(facts)
    assert found["share"].isna().all()
    section = curves.matters(facts, against(facts))
    assert section is not None
    assert "Nothing is said of n_ctx, lr: the metric does not vary." in section.texts
    assert not section.charts


def test_data_sets_are_compared_by_rank(make_store):
    body = "axes: {data: [oxford_pets, dtd, food101], method: [promptfl, coop, fedpgp]}\nseeds: 2\n"
    facts = Facts(make_store(["clip=vit_b16"], body=body, level=lambda cell: 0.4 + 0.1 * (cell.number % 3)))
    section = table.datasets(facts, against(facts))
    assert section is not None
    rows = [[td.text for td in row.cells] for row in section.tables[0].rows]
    assert [row[:2] for row in rows] == [["fedpgp", "1.00"], ["coop", "2.00"], ["promptfl", "3.00"]]
    mine = [
        value for cell in facts.cells if "fedpgp" in cell.label for value in facts.by_seed(cell, facts.metric).values()
    ]
    assert rows[0][2] == f"{100 * np.mean(mine):.2f}"
    spec = section.charts["ranks"][0]
    ranks = {row["name"]: row["rank"] for row in spec["data"]["values"]}
    assert ranks == {"fedpgp": 1, "coop": 2, "promptfl": 3}
    groups = {(row["first"], row["last"]) for row in spec["layer"][1]["data"]["values"]}
    assert groups == {(1, 2), (2, 3)}
    length = 2.343 * math.sqrt(3 * 4 / (6 * 3))  # Demsar 2006, Table 5: three cells
    assert spec["title"] == f"critical difference {length:.2f}"


def test_show_as_json_holds_the_comparisons(make_store, capsys):
    from fpl_tune.cli.show import print_results

    print_results(make_store(), "final", "json")
    rows = json.loads(capsys.readouterr().out)
    assert {row.get("reference") for row in rows} == {"zeroshot", None}
    assert all({"verdict", "sentence", "difference_low"} <= row.keys() for row in rows[:3])


def test_cells_on_other_partitions_are_not_compared(make_store):
    """Neither a verdict nor advice on seeds would mean anything; cells without a seed in common still say so."""
    store = make_store(["seeds=2"], body=SWEEP)
    apart = store.cells()[0]
    for seed in (1, 2):
        store.put(apart, seed, store.history(apart, seed), {**(store.result(apart, seed) or {}), "split_hash": "other"})
    facts = Facts(store)
    tests = against(facts)
    assert apart.id not in tests.index
    assert tests.attrs["apart"] == 1
    assert "Not compared: 1 cell on other data or partitions." in table.cells(facts, tests).texts
