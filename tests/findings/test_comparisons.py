"""What cells are compared with: the study's reference, the reference that is chosen, a value of an axis; and seeds."""

# The stubs do not know the fields of a method.
# pyright: reportAttributeAccessIssue=false

import pytest

from fpl_tune import methods
from fpl_tune.findings.comparisons import compare, look, offered_references
from fpl_tune.report import table

from ..conftest import there
from ..report.conftest import findings_of, put

METHODS = "axes: {method: [promptfl, fedpgp], optim: {lr: [0.01, 0.1]}}\nreferences: [{method: zeroshot}]\nseeds: 2\n"


def test_a_reference_of_a_method_that_is_an_axis_too_keeps_its_name(make_store):
    """Each cell meets the one at its own place of the axes; a reference that trains nothing is there once."""
    store = make_store(body=METHODS.replace("[{", "[{method: coop}, {"))
    findings = findings_of(store)
    reference, untrained = compare(findings).reference, compare(findings, "zeroshot").reference
    assert reference.name == "coop"
    assert findings.references == [cell for cell in findings.cells if cell.role == "reference"]
    for cell in findings.own:
        other = there(reference.of(cell))
        assert (methods.name_of(other.run.method), other.role) == ("coop", "reference")
        assert other.run.optim.lr == cell.run.optim.lr
        assert there(untrained.of(cell)).label == "zeroshot"
    assert not any(reference.holds(cell) for cell in findings.own)


def test_a_value_of_an_axis_can_be_the_reference(make_store):
    """Each cell meets the one that differs from it in that field alone; the cells of the value meet nobody."""
    store = make_store(body=METHODS)
    findings = findings_of(store)
    comparisons = compare(findings, "promptfl")
    for cell in findings.own:
        other = there(comparisons.reference.of(cell))
        assert (methods.name_of(other.run.method), other.run.optim.lr) == ("promptfl", cell.run.optim.lr)
        assert (cell.id in comparisons.frame.index) == (methods.name_of(cell.run.method) == "fedpgp")
        if cell.id in comparisons.frame.index:
            gain = findings.frame.loc[cell.id, "mean"] - findings.frame.loc[other.id, "mean"]
            assert comparisons.frame.loc[cell.id, "difference"] == pytest.approx(gain, abs=1e-9)


def test_a_reference_has_its_name_without_what_all_cells_share(make_store):
    shots = "[{label: few, data.shots: 2}, {label: many, data.shots: 4}]"
    body = f"axes: {{data: [shapes], shots: {shots}, method: [promptfl, coop]}}\nreferences: [{{method: zeroshot}}]\n"
    assert compare(findings_of(make_store(body=body))).reference.name == "zeroshot"


def test_a_reference_is_the_study_s_choice_else_the_first_reference(make_store):
    body = "axes: {method: [promptfl, fedpgp]}\nreferences: [{method: zeroshot}, {method: coop}]\nseeds: 2\n"
    assert compare(findings_of(make_store(body=body))).reference.name == "zeroshot"
    assert compare(findings_of(make_store(["report.reference=coop"], body=body))).reference.name == "coop"
    assert compare(findings_of(make_store(["report.reference=fedpgp"], body=body))).reference.name == "fedpgp"
    alone = findings_of(make_store(body="axes: {method: {n_ctx: [2, 4]}}\nseeds: 2\n", name="alone"))
    assert alone.best is not None
    assert compare(alone).reference.name == alone.best.label


def test_intervals_are_wider_where_the_reference_was_picked_by_its_results(make_store):
    body = "axes: {method: {n_ctx: [2, 4, 8, 16]}}\nseeds: 3\n"
    picked = compare(findings_of(make_store(body=body)))
    name = picked.reference.name
    named = compare(findings_of(make_store(body=f"{body}report: {{reference: {name}}}\n")))
    assert (picked.reference.chosen, named.reference.chosen, named.reference.name) == (True, False, name)
    assert picked.frame["difference"].tolist() == named.frame["difference"].tolist()
    widths = [each.frame["high"] - each.frame["low"] for each in (picked, named)]
    assert (widths[0] > widths[1]).all()


def test_seeds_with_another_split_are_not_paired(make_store):
    store = make_store()
    cell = store.cells()[0]
    put(store, cell, 2, split_hash="other")
    assert compare(findings_of(store)).frame.loc[cell.id, "seeds"] == 2


def test_without_references_a_cell_is_tested_against_the_best_of_its_setting(make_store):
    body = "axes: {data: {shots: [2, 4]}, method: {n_ctx: [2, 3, 4]}}\nseeds: 2\n"
    findings = findings_of(make_store(body=body))
    best = {cell.run.data.shots: cell for cell in findings.own if cell.id in findings.chosen}
    assert best.keys() == {2, 4}
    assert len({cell.run.method.n_ctx for cell in best.values()}) == 1
    found = compare(findings).frame
    others = [cell for cell in findings.own if cell.id not in findings.chosen]
    assert dict(found["reference"]) == {cell.id: best[cell.run.data.shots].id for cell in others}
    assert len(others) == 4


def test_settings_of_the_protocol_are_compared_only_with_a_reference_that_is_asked_for(make_store):
    """They have the same test sets, so that seeds of different settings could be paired."""
    body = "axes: {protocol.rounds: [2, 4], method.n_ctx: [2, 4], optim.lr: [0.01, 0.1]}\nseeds: 2\n"
    findings = findings_of(make_store(body=body, level=lambda cell: 0.5 + 0.1 * cell.run.method.n_ctx))
    rounds = {cell.id: cell.rounds for cell in findings.cells}
    found = compare(findings).frame
    assert len(found) == 3, "others in the setting of the reference"
    assert all(rounds[str(cell)] == rounds[base] for cell, base in found["reference"].items())
    assert {*compare(findings, "rounds=2").frame.index} == {cell for cell, number in rounds.items() if number == 4}
    assert table.each(findings, compare(findings)) is None, "the best cells of the settings share no single name"


def test_a_metric_without_clients_is_compared_as_it_is(make_store):
    findings = findings_of(make_store(), metric="train/loss")
    frame = findings.values
    assert set(frame["client"]) == {0}
    assert (frame["value"] == 0.25).all()
    assert "equal" not in set(compare(findings).frame["verdict"])


def test_the_region_of_equivalence_is_the_study_s(make_store):
    level = lambda cell: 0.5 + cell.number / 1e5  # noqa: E731
    wide = compare(findings_of(make_store(["report.rope=40"], level=level))).frame
    assert set(wide["verdict"]) == {"equal"}
    assert set(compare(findings_of(make_store(["report.rope=0"], level=level))).frame["verdict"]) == {"undecided"}


def test_cells_that_joined_later_are_looked_at_first(make_store):
    """References are compared apart from the study's cells, of which n_ctx=4 has the seeds of the first look alone."""
    store = make_store(
        ["report.rope=0", "report.reference='n_ctx=2'"],
        body="axes: {method: {n_ctx: [2, 4]}}\nreferences: [{method: coop}]\nseeds: until_decided\nlooks: [2, 3, 5]\n",
        level=lambda cell: 0.5 + cell.number / 1e4,
        fill=lambda cell, seed: seed <= (2 if cell.number == 1 else 3),
    )
    seen = there(look(findings_of(store)))
    assert (seen.seeds, seen.further, seen.decided) == (2, (3,), 0)
    assert [store.cell(key).label for key in seen.goes_on] == ["n_ctx=2", "n_ctx=4"]


def test_the_page_offers_references_methods_and_cells(make_store):
    findings = findings_of(make_store(body=METHODS))
    offered = offered_references(findings, compare(findings))
    assert offered[0] == "zeroshot"
    assert {"promptfl", "fedpgp", "promptfl, lr=0.01"} <= {*offered}
    assert len(offered) == len({*offered})
    few = offered_references(findings, compare(findings), most=1)
    assert few == offered[:3], "at least three"
