"""`fpl-tune run`: what a run of several seeds ends with."""

import csv
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fpl_tune import config

from .conftest import Command

SMALL = (
    "run method=coop method.n_ctx=2 data.train_per_class=8 data.test_per_class=2 protocol.rounds=2 protocol.epochs=1"
)


def test_a_run_of_several_seeds_ends_with_their_mean(command: Command) -> None:
    lines = command(*SMALL.split(), "seeds=3").out.splitlines()
    finals = [re.findall(r"[\d.]+", line) for line in lines if "│ final " in line]
    mean = sum(float(test) for *_, test in finals) / len(finals)
    said = re.fullmatch(r"mean of 3 seeds after round 2: validation (\S+) ± (\S+) %, test (\S+) ± (\S+) %", lines[-1])
    assert said, lines[-1]
    assert abs(float(said[3]) - mean) < 0.1
    assert any("best_test and mean_last5 select on test figures" in line for line in lines)


def test_a_run_of_one_seed_and_output_for_programs_have_none(command: Command) -> None:
    assert "mean of" not in command(*SMALL.split()).out
    assert "mean of" not in command(*SMALL.split(), "seeds=2", "--format", "csv").out


def test_figures_of_a_seed_are_those_that_it_has_alone(command: Command) -> None:
    split = ("partition.evaluation=base_to_novel", "data.shots=2", "--format", "csv")

    def rows(seeds: str) -> list[dict[str, str]]:
        done = command(*SMALL.split(), f"seeds={seeds}", *split)
        return [{k: v for k, v in row.items() if "time" not in k} for row in csv.DictReader(done.out.splitlines())]

    both = rows("[1,2]")
    assert [row["seed"] for row in both] == sorted(row["seed"] for row in both)
    assert {row["test/novel/acc_mean"] for row in both if row["rule"] == "final"} != {""}
    for name in ("1", "2"):
        for row, alone in zip([row for row in both if row["seed"] == name], rows(f"[{name}]"), strict=True):
            for field, value in alone.items():
                if field in ("seed", "rule") or not value:
                    assert row[field] == value
                else:
                    assert float(row[field]) == pytest.approx(float(value), abs=1e-6)


def test_a_run_that_cannot_start_is_refused_before_its_images_are_encoded(
    command: Command, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FPL_TUNE_CACHE", str(here / "cache"))
    data = "data.train_per_class=19"  # no other test has these images, so that none are in memory
    done = command(*SMALL.replace("method=coop", "method=pfedmoap").split(), data, "method.experts=99")
    assert (done.code, done.out) == (2, "")
    assert "method.experts must be at most the number" in done.err
    assert not [*here.rglob("*.npy")]


def test_a_configuration_is_printed_with_all_its_fields_and_nothing_runs(command: Command, here: Path) -> None:
    done = command(*SMALL.split(), "--cfg")
    run = config.as_dict(config.compose_run(SMALL.split()[1:]))
    assert (run["method"]["name"], run["method"]["n_ctx"], run["protocol"]["rounds"]) == ("coop", 2, 2)
    assert OmegaConf.create(done.out) == OmegaConf.create(run)
    assert "final" not in done.out
