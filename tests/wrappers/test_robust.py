"""Robust aggregation: numbers by the papers' definitions, what liars can do, and what is left to `inner`."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from simulated_device import counting, simulated
from torch import Generator, Tensor

from fpl_tune.core.errors import ConfigError
from fpl_tune.method import Batch, Local, Method, State, Task, generator, in_place, scatter_rows
from fpl_tune.methods._averaging import FederatedAveraging
from fpl_tune.methods.fedclip import FedCLIP
from fpl_tune.methods.feddpt import FedDPT
from fpl_tune.methods.fedmap import FedMAP
from fpl_tune.methods.pfedmoap import PFedMoAP
from fpl_tune.methods.promptfl import PromptFL
from fpl_tune.methods.promptsrc import PromptSRC
from fpl_tune.simulation.task import ClientTask
from fpl_tune.testing import assert_same, play, toy_task
from fpl_tune.wrappers.ditto import Ditto
from fpl_tune.wrappers.finetuned import FineTuned
from fpl_tune.wrappers.private import Private
from fpl_tune.wrappers.proximal import Proximal
from fpl_tune.wrappers.robust import Robust
from fpl_tune.wrappers.scaffold import Scaffold
from fpl_tune.wrappers.server import ServerOptimizer

RULES = get_args(get_type_hints(Robust)["rule"])
WITHOUT_MEMORY = [rule for rule in RULES if rule != "centered_clipping"]
SIZES = (9, 5, 7, 3, 6, 2, 8, 4, 5, 3, 7)
"""Training images of the clients."""
PROMPT = PromptFL(n_ctx=1)


@dataclass(frozen=True)
class Two(FederatedAveraging):
    """Averages two leaves, of three and of four numbers."""

    weights: Literal["size", "uniform"] = "size"

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        return State({"a": torch.randn(3, generator=rng).double(), "b": torch.ones(2, 2).double()}, {}, {})

    def logits(self, task: Task, local: Local, batch: Batch) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class Pooled(Two):
    """Keeps on the server what every client sent last and in how many rounds it did, and sums and means of a round."""

    def init(self, task: Task, rng: Generator, before: State | None = None) -> State:
        rows = torch.zeros(task.n_clients, 3).double()
        server = {"pool.a": rows, "rounds": rows.clone(), "data": rows[0].clone(), "mean.a": rows[0].clone()}
        return super().init(task, rng)._replace(server=server)

    def merge(self, task: Task, state: State, clients: Tensor, local: Local) -> State:
        latest = {"pool.a": local.params["a"], "rounds": state.server["rounds"][clients] + 1}
        server = {name: scatter_rows(state.server[name], clients, rows) for name, rows in latest.items()}
        server |= {"data": local.params["a"].sum(0), "mean.a": local.params["a"].mean(0)}
        return super().merge(task, state, clients, local)._replace(server=server)


def task_of(n: int) -> ClientTask:
    return toy_task(sizes=SIZES[:n]).during(1, 1, key=3)


def merged(method: Method, task: ClientTask, moves: Tensor, state: State | None = None, order: Any = None) -> State:
    """The state after updates [C, 7] of `Two`, in the order of the clients or another one."""
    state = state or method.init(task, generator("two"))
    clients = torch.arange(len(moves)) if order is None else torch.tensor(order)
    local = method.start(task, state, clients)
    sent = {"a": state.shared["a"] + moves[clients, :3], "b": state.shared["b"] + moves[clients, 3:].view(-1, 2, 2)}
    return method.merge(task, state, clients, local._replace(params=sent))


def moved(after: State, before: State) -> np.ndarray:
    """[7] what a round changed."""
    return torch.cat([(after.shared[name] - before.shared[name]).flatten() for name in ("a", "b")]).numpy()


def change(method: Method, task: ClientTask, moves: Tensor, **how: Any) -> np.ndarray:
    return moved(merged(method, task, moves, **how), method.init(task, generator("two")))


def drawn(n: int, seed: int = 0) -> Tensor:
    """[n, 7] updates around a common direction."""
    return 1 + torch.randn(n, 7, generator=torch.Generator().manual_seed(seed)).double()


# -- numbers by the papers' definitions ------------------------------------------------------------------------


def krum_order(x: np.ndarray, f: int) -> list[int]:
    """Updates by the sum of squared distances to the n - f - 2 nearest others, at least one."""
    n, scores = len(x), []
    for i in range(n):
        away = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(away[: max(1, n - f - 2)]))
    return sorted(range(n), key=lambda i: (scores[i], i))


def by_definition(rule: str, x: np.ndarray, f: int, size: np.ndarray) -> np.ndarray:
    """The robust average of updates [n, 7] of clients with numbers of images [n]."""
    if rule == "median":
        return np.median(x, axis=0)
    if rule == "trimmed_mean":
        return np.array([np.mean(sorted(column)[f : len(x) - f]) for column in x.T])
    if rule == "krum":
        return x[krum_order(x, f)[0]]
    if rule == "multi_krum":
        return x[krum_order(x, f)[: len(x) - f]].mean(0)
    if rule == "geometric_median":

        def total(v: np.ndarray) -> float:
            return float((size * np.linalg.norm(x - v, axis=1)).sum())

        found = minimize(total, np.median(x, axis=0), method="BFGS", options={"gtol": 1e-11})
        return min([found.x, *x], key=total)  # at an update, the sum has no gradient
    length = np.linalg.norm(x, axis=1)  # of both clippings in the first round
    short = x * np.minimum(1, np.median(length) / length)[:, None]
    return (size[:, None] * short).sum(0) / size.sum()


def admitted(rule: str, n: int, f: int) -> int:
    """As many of f liars as the rule admits."""
    return min(f, max(0, math.ceil(n / 2) - (2 if "krum" in rule else 1)))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 11])
def test_numbers_are_those_of_the_definition(rule: Any, n: int) -> None:
    task, x, f = task_of(n), drawn(n), max(1, round(0.25 * n))
    wanted = by_definition(rule, x.numpy(), admitted(rule, n, f), np.array(SIZES[:n]))
    tolerance = 1e-5 if rule == "geometric_median" else 1e-12  # of the search for the point
    np.testing.assert_allclose(change(Robust(Two(), rule=rule), task, x), wanted, atol=tolerance)


@pytest.mark.parametrize("f", range(5))
@pytest.mark.parametrize("rule", ["trimmed_mean", "krum", "multi_krum"])
def test_liars_are_counted_by_their_share(rule: Any, f: int) -> None:
    found = change(Robust(Two(), rule=rule, liars=f / 11), task_of(11), drawn(11))
    np.testing.assert_allclose(found, by_definition(rule, drawn(11).numpy(), f, np.ones(11)), atol=1e-12)


def test_the_geometric_median_is_where_unit_vectors_to_the_updates_cancel() -> None:
    """The gradient of the sum of distances, which by the definition is zero; also with few images far away."""
    x = drawn(8)
    x[3] += 100
    size, v = np.array(SIZES[:8]), change(Robust(Two(), rule="geometric_median"), task_of(8), x)
    away = x.numpy() - v
    unit = away / np.linalg.norm(away, axis=1)[:, None]
    np.testing.assert_allclose((size[:, None] * unit).sum(0) / size.sum(), 0, atol=1e-6)


def test_clipping_is_around_what_the_round_before_changed() -> None:
    method, task = Robust(Two(), rule="centered_clipping", bound=0.8), task_of(5)
    states, centre, size = [method.init(task, generator("two"))], np.zeros(7), np.array(SIZES[:5])
    for seed in range(3):
        x = drawn(5, seed)
        states.append(merged(method, task, x, states[-1]))
        away = x.numpy() - centre
        length = np.linalg.norm(away, axis=1)
        short = away * np.minimum(1, 0.8 * np.median(length) / length)[:, None]
        centre = centre + (size[:, None] * short).sum(0) / size.sum()
        np.testing.assert_allclose(moved(states[-1], states[-2]), centre, atol=1e-12)


@pytest.mark.parametrize("rule", WITHOUT_MEMORY)
@pytest.mark.parametrize("n", [5, 8])
def test_buckets_are_averaged_before_the_rule(rule: Any, n: int) -> None:
    """The buckets are those that some order of the clients gives: the last one of five has one update."""
    task, x, size, width = task_of(n), drawn(n).numpy(), np.array(SIZES[:n]), 3
    found = change(Robust(Two(), rule=rule, bucket=width, liars=0), task, drawn(n))
    tolerance = 1e-5 if rule == "geometric_median" else 1e-12
    for parts in partitions(n, width):
        means = np.stack([x[list(part)].mean(0) for part in parts])
        weight = np.array([size[list(part)].sum() for part in parts])
        if np.allclose(found, by_definition(rule, means, 0, weight), atol=tolerance, rtol=0):
            return
    pytest.fail("of no partition")


def partitions(n: int, width: int) -> list[list[tuple[int, ...]]]:
    """All ways to fill buckets one after another."""

    def filled(left: frozenset[int]) -> list[list[tuple[int, ...]]]:
        if not left:
            return [[]]
        taken = itertools.combinations(sorted(left), min(width, len(left)))
        return [[part, *rest] for part in taken for rest in filled(left - set(part))]

    return filled(frozenset(range(n)))


def test_buckets_change_with_the_round() -> None:
    method = Robust(Two(), bucket=2, liars=0)
    rounds = {tuple(change(method, task_of(8).during(r, 9, key=r), drawn(8)).round(9)) for r in range(1, 6)}
    assert len(rounds) > 3


@pytest.mark.parametrize("rule", RULES)
def test_only_clipping_around_a_centre_has_a_state(task: ClientTask, rule: Any) -> None:
    server = Robust(PROMPT, rule=rule).init(task, generator("state")).server
    assert {name: leaf.abs().sum().item() for name, leaf in server.items()} == (
        {"robust.prompt": 0.0} if rule == "centered_clipping" else {}
    )


# -- properties --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bucket", [1, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_order_of_clients_has_no_effect(rule: Any, n: int, bucket: int) -> None:
    """Of three updates, two have the same sum in Krum."""
    method, task, x = Robust(Two(), rule=rule, bucket=bucket), task_of(n), drawn(n)
    orders = [list(range(n)), list(range(n))[::-1], [*range(1, n), 0]]
    found = [change(method, task, x, order=order) for order in orders]
    np.testing.assert_allclose(found[1:], [found[0]] * 2, atol=1e-12)


@pytest.mark.parametrize("size", [1e2, 1e8])
@pytest.mark.parametrize(("liars", "bucket"), [([0], 1), ([2, 5], 1), ([0, 1, 9], 1), ([7], 2), ([2, 5], 2)])
@pytest.mark.parametrize("rule", RULES)
def test_liars_move_the_mean_but_not_the_rule(rule: Any, liars: list[int], bucket: int, size: float) -> None:
    """Of 11 clients with equal numbers of images, up to three send the same huge update."""
    n, task = 11, toy_task(sizes=[4] * 11).during(1, 1, key=5)
    method = Robust(Two(), rule=rule, liars=len(liars) / n, bucket=bucket)
    if "krum" in rule and bucket * len(liars) == 4:
        with pytest.raises(ConfigError, match=r"\(1 of the 11 updates"):
            method.check(task)
        return
    method.check(task)
    x, honest = drawn(n), [i for i in range(n) if i not in liars]
    x[liars] = -size * torch.arange(1.0, 8.0).double()
    found, benign = change(method, task, x), x[honest].numpy()
    longest, length = np.linalg.norm(benign, axis=1).max(), np.linalg.norm(found)
    if rule in ("median", "trimmed_mean", "krum", "multi_krum"):
        assert np.all(found >= benign.min(0) - 1e-9)
        assert np.all(found <= benign.max(0) + 1e-9)
    elif rule == "geometric_median":  # Lopuhaä, Rousseeuw, Annals of Statistics 1991, Theorem 2.2
        buckets = math.ceil(n / bucket)
        assert length <= 2 * (buckets - len(liars)) / (buckets - 2 * len(liars)) * longest
    else:
        assert length <= longest
    assert np.linalg.norm(change(Two(), task, x)) > 5 * longest


@pytest.mark.parametrize("method", [Two(), Two("uniform")], ids=["size", "uniform"])
def test_without_a_bound_clipping_is_inner(method: Method) -> None:
    wanted = change(method, task_of(8), drawn(8))
    for rule in ("norm_bound", "centered_clipping"):
        found = change(Robust(method, rule=rule, bound=math.inf), task_of(8), drawn(8))
        np.testing.assert_allclose(found, wanted, atol=1e-12)


@pytest.mark.parametrize("rule", ["trimmed_mean", "multi_krum"])
def test_without_liars_a_rule_of_means_is_the_mean(rule: Any) -> None:
    found = change(Robust(Two(), rule=rule, liars=0), task_of(8), drawn(8))
    np.testing.assert_allclose(found, drawn(8).numpy().mean(0), atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_equal_updates_are_their_own_robust_average(rule: Any) -> None:
    same, none = drawn(1).expand(5, -1), torch.zeros(5, 7).double()
    for bound in (1.0, math.inf):
        method = Robust(Two(), rule=rule, bound=bound)
        np.testing.assert_allclose(change(method, task_of(5), same), same[0].numpy(), atol=1e-12)
        np.testing.assert_allclose(change(method, task_of(5), none), 0, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bucket", [1, 2])
def test_a_merge_waits_for_nothing(rule: Any, bucket: int) -> None:
    """On a GPU: buckets are drawn on the CPU, and copied."""
    method = Robust(PROMPT, rule=rule, bucket=bucket)
    with simulated() as device:
        task, clients = toy_task(device=device), torch.arange(4, device=device)
        state = method.init(task, generator("gpu"))
        local = method.start(task, state, clients)
        with counting() as seen:
            method.merge(task, state, clients, local)
        assert seen.waits == bucket - 1, (seen.syncs, seen.copies)


# -- what is left to inner -----------------------------------------------------------------------------------------


def shifted(method: Method, task: ClientTask, state: State, clients: Tensor, by: Callable[[Tensor], Tensor]) -> Local:
    """Leaves that are trained, after updates by client id."""
    local = method.start(task, state, clients)
    rows = by(clients.double())
    return local._replace(params={n: v + rows.view(-1, *[1] * (v.ndim - 1)) for n, v in local.params.items()})


@pytest.mark.parametrize("rule", RULES)
def test_personal_leaves_and_pools_are_those_of_inner(rule: Any) -> None:
    inner = PFedMoAP(n_ctx=1, experts=3, d_gating=12, heads=3)
    method, task, clients = Robust(inner, rule=rule), toy_task(), torch.tensor([0, 2, 3])
    state = method.init(task, generator("pool"))
    local = shifted(method, task, state, clients, lambda ids: ids + 1)
    after, wanted = (m.merge(task, s, clients, local) for m, s in ((method, state), (inner, method.inner_state(state))))
    assert_same(State({}, after.personal, {n: after.server[n] for n in wanted.server}), wanted._replace(shared={}))
    assert not torch.allclose(after.shared["prompt"], wanted.shared["prompt"])


def test_a_merge_in_place_merges_once_and_keeps_what_is_no_average() -> None:
    """Of the server's leaves, the mean alone has name and shape of a shared one. No leaf is personal."""
    method, task, x = Robust(Pooled()), task_of(5), drawn(5)
    state = method.init(task, generator("two"))
    with in_place():
        after = merged(method, task, x, state)
    assert after.server["rounds"].tolist() == [[1.0] * 3] * 5
    torch.testing.assert_close(after.server["pool.a"], state.shared["a"] + x[:, :3])
    torch.testing.assert_close(after.server["data"], (state.shared["a"] + x[:, :3]).sum(0))
    torch.testing.assert_close(after.server["mean.a"], after.shared["a"])


def test_leaves_that_clients_do_not_send_count_as_unchanged() -> None:
    """Clients 2 and 3 are new in the second round: they have no experts, and send no gate."""
    inner = PFedMoAP(n_ctx=1, experts=3, d_gating=12, heads=3, aggregate_gate=True)
    task, everyone = toy_task(sizes=(5, 5, 5, 5)), torch.arange(4)
    (state,) = play(inner, [task], cohorts=[(0, 1)])[-1]
    for method, share in ((inner, 1.5), (Robust(inner, rule="trimmed_mean", liars=0), 0.75)):
        local = shifted(method, task, state, everyone, lambda ids: torch.where(ids < 2, ids + 1, 1e6))
        after = method.merge(task, state, everyone, local)
        gate = after.shared["gate.bias"] - state.shared["gate.bias"]
        torch.testing.assert_close(gate, torch.full_like(gate, share))


@pytest.mark.parametrize("optimizer", ["avgm", "adam"])
@pytest.mark.parametrize("rule", WITHOUT_MEMORY)
def test_moments_of_the_server_are_those_of_robust_averages(rule: Any, optimizer: Any) -> None:
    """Inside or outside of a server's optimiser is the same."""
    outside = Robust(ServerOptimizer(PROMPT, optimizer=optimizer), rule=rule)
    inside = ServerOptimizer(Robust(PROMPT, rule=rule), optimizer=optimizer)
    (one,), (other,) = (play(method, [toy_task()], cohorts=[(0, 1, 2)] * 3)[-1] for method in (outside, inside))
    assert_same(one, other, tolerance=1e-12)


def test_a_mean_over_rounds_has_no_liar_in_it() -> None:
    method = Robust(PromptSRC(n_ctx=1, n_tokens=1, depth=1))
    task, clients = toy_task("pixels").during(1, 3, key=0), torch.arange(4)
    state = method.init(task, generator("mean"))
    local = shifted(method, task, state, clients, lambda ids: torch.where(ids == 2, 1e6, 0.1))
    after = method.merge(task, state, clients, local)
    for name, leaf in after.shared.items():
        torch.testing.assert_close(leaf, state.shared[name] + 0.1)
        torch.testing.assert_close(after.server[f"mean.{name}"], leaf)


def test_copies_of_clients_are_no_updates() -> None:
    """Those of Ditto stay, and do not count in distances."""
    task, clients = toy_task(), torch.arange(4)
    state = Robust(Ditto(PROMPT), rule="krum", liars=0).init(task, generator("copies"))
    found = []
    for spread in (0.0, 100.0):
        local = Ditto(PROMPT).start(task, state, clients)
        ids = torch.tensor([0.0, 1.0, 1.5, 5.0]).double().view(-1, 1, 1)
        local.params["prompt"] = local.params["prompt"] + ids
        local.params["prompt.ditto"] = local.params["prompt.ditto"] + spread * ids
        after = Robust(Ditto(PROMPT), rule="krum", liars=0).merge(task, state, clients, local)
        torch.testing.assert_close(after.personal["ditto.prompt"], local.params["prompt.ditto"])
        found.append(after.shared["prompt"])
    torch.testing.assert_close(found[0], state.shared["prompt"] + 1)
    assert torch.equal(*found)


# -- refusals ----------------------------------------------------------------------------------------------------


def test_noise_is_added_before_the_rule(task: ClientTask) -> None:
    Private(Robust(PROMPT)).check(task)
    with pytest.raises(ConfigError, match=r"method\.inner must not be private.*'Private'\. Wrap robust in private\."):
        Robust(Proximal(Private(PROMPT))).check(task)


@pytest.mark.parametrize("inner", [FineTuned(PROMPT), FedCLIP(broadcast=False)], ids=["sends nothing", "not received"])
def test_a_method_whose_clients_exchange_nothing_is_refused(task: ClientTask, inner: Method) -> None:
    with pytest.raises(ConfigError, match=r"robust acts on what clients exchange, but none of .* is exchanged"):
        Robust(inner).init(task, generator("no"))


@pytest.mark.parametrize(
    ("inner", "other"),
    [(FedDPT(n_ctx=1), "text"), (FedMAP(depth=1), "prototypes"), (Scaffold(PROMPT), "control.prompt")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_method_that_would_be_covered_in_part_is_refused(inner: Method, other: str) -> None:
    with pytest.raises(ConfigError, match=rf"are averaged, but {type(inner).__name__} also sends {other}\. Wrap a"):
        Robust(inner).init(toy_task(inner.needs), generator("no"))


def test_control_variates_go_around_a_robust_method(task: ClientTask) -> None:
    (before,), (after,) = play(Scaffold(Robust(PROMPT)), [task], cohorts=[(0, 1, 2)])
    (plain,) = play(Scaffold(PROMPT), [task], cohorts=[(0, 1, 2)])[-1]
    assert torch.equal(after.shared["control.prompt"], plain.shared["control.prompt"])
    assert not torch.equal(after.shared["prompt"], plain.shared["prompt"])
    assert not torch.equal(after.shared["prompt"], before.shared["prompt"])


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("n", "bucket"), [(1, 1), (3, 1), (6, 1), (7, 1), (11, 1), (11, 2), (11, 4)])
def test_a_rule_is_refused_where_it_does_not_hold(rule: Any, n: int, bucket: int) -> None:
    """2 f + 2 < b for Krum, 2 f < b for others, in b buckets."""
    task, buckets = toy_task(sizes=[4] * n), math.ceil(n / bucket)
    for f in range(1, n + 1):
        method = Robust(PROMPT, rule=rule, liars=f / n, bucket=bucket)
        if 2 * f + (2 if "krum" in rule else 0) < buckets:
            method.check(task)
        else:
            with pytest.raises(ConfigError, match=rf"method\.liars must be at most .* of the {n} updates of a round"):
                method.check(task)


def test_messages_have_numbers_and_a_remedy() -> None:
    task = replace(toy_task(sizes=[4] * 10), cohort=6)
    with pytest.raises(ConfigError) as refused:
        Robust(PROMPT, rule="krum", liars=0.3).check(task)
    assert str(refused.value) == (
        "method.liars must be at most 0.167 (1 of the 6 updates of a round) with rule=krum, but is 0.3. Lower it, or "
        "train more clients in a round."
    )
    with pytest.raises(ConfigError, match=r"\(0 of the 6 updates of a round\) with rule=median and bucket=6, but"):
        Robust(PROMPT, bucket=6).check(task)
    Robust(PROMPT, liars=0.3).check(replace(task, malicious=2))
    with pytest.raises(ConfigError) as refused:
        Robust(PROMPT, liars=0.1).check(replace(task, malicious=2))
    assert str(refused.value) == (
        "method.liars must be at least 0.333, as 2 of the 6 clients of a round are malicious, but is 0.1. Raise it, or "
        "lower clients.malicious.share."
    )
