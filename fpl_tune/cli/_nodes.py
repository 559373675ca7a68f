"""What `fpl-tune doctor` says of a cluster, a row a finding, with a remedy each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fpl_tune.amounts import counted
from fpl_tune.cli.output import size
from fpl_tune.errors import FplTuneError
from fpl_tune.paths import cache_root

_LITTLE_SPACE = 2 << 30


def check_cluster(address: str, root: Path, checkpoints: str | None, data_roots: Sequence[str]) -> list[dict[str, str]]:
    """Rows on the cluster at an address: reachable, and each node's versions, storage, GPUs, data and cache."""
    from fpl_tune import tune

    storage = checkpoints or str(root)
    try:
        nodes, findings = tune.inspect(address, storage, cache_root(), data_roots)
    except FplTuneError as problem:
        return [_row("Ray", str(problem), "Start the cluster, or mend the address.", wrong=True)]
    rows = [_row("Ray", f"{counted(len(nodes), 'node')} at {address}")]
    for node in nodes:
        facts = node.facts
        found = f"{node.cpus:g} CPU, {node.gpus:g} GPU"
        if facts is not None:
            found += "".join(f", {name} {size(memory)}" for name, memory in facts.gpus)
        rows.append(_row(node.name, found))
        if facts is not None:
            little = facts.cache_free < _LITTLE_SPACE
            free = "cannot be written" if facts.cache_free < 0 else f"{size(facts.cache_free)} free"
            remedy = "Free some space, or set FPL_TUNE_CACHE where the node is started."
            rows.append(_row(f"feature cache of {node.name}", f"{facts.cache}, {free}", remedy, wrong=little))
    rows += [_row(node.name, finding, remedy, wrong=True) for node, finding, remedy in findings]
    if not any(node.facts and node.facts.storage for node in nodes):
        rows.append(_row("shared storage", f"{storage}, written and read by all nodes that answer"))
    rows.append(_row("MLflow from nodes", "not needed: the driver alone writes records"))
    return rows


def _row(what: str, found: str, remedy: str = "", *, wrong: bool = False) -> dict[str, str]:
    return {
        "what": what,
        "state": "wrong" if wrong else "fine",
        "found": found,
        "remedy": remedy if wrong else "",
    }
