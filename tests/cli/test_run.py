"""`fpl-tune run`: what a run of several seeds ends with."""

import re

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


def test_a_run_of_one_seed_and_output_for_programs_have_none(command: Command) -> None:
    assert "mean of" not in command(*SMALL.split()).out
    assert "mean of" not in command(*SMALL.split(), "seeds=2", "--format", "csv").out
