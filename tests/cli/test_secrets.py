"""No value of the environment and no password of an address appears in anything that a study writes or prints."""

from pathlib import Path

import pytest

from .conftest import Command, Done

SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "sentinel-of-a-bucket",
    "MLFLOW_TRACKING_PASSWORD": "sentinel-of-a-server",
    "A_TOKEN": "sentinel-of-a-token",
}
STUDY = r"""
defaults: [/study, override /method: promptfl, _self_]
title: 'Costs $5 of ${let.what} {y} $\frac{$ $A_TOKEN'
note: '~ $HOME ${let.what} %(A_TOKEN)s {A_TOKEN}'
let: {what: rounds}
axes: {optim: {lr: [0.01, 0.1]}}
references: [{label: '$\alpha_{', method: zeroshot}]
data: {train_per_class: 8, test_per_class: 2, shots: 2, domains: [clipart]}
partition: {n_clients: 2}
protocol: {rounds: 1, epochs: 1}
execution: {executor: inline}
seeds: 1
"""


@pytest.fixture(autouse=True)
def study(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    (here / "odd.yaml").write_text(STUDY)


def scan(here: Path, *done: Done) -> None:
    """Fails if a secret is in a file below a folder, or in what commands printed."""
    files = [path for path in here.rglob("*") if path.is_file()]
    written = {str(path): path.read_bytes() for path in files}
    printed = {f"output {i}": f"{one.out}{one.err}".encode() for i, one in enumerate(done)}
    assert {name for name, content in {**written, **printed}.items() if b"sentinel" in content} == set()


def test_values_of_the_environment_are_written_nowhere(here: Path, command: Command) -> None:
    done = [
        command("study", "./odd.yaml"),
        command("report", "odd"),
        command("export", "odd", "shared"),
        command("show", "odd", "--format", "json"),
    ]
    assert [one.code for one in done] == [0] * len(done), [one.err for one in done]
    assert {"study.yaml", "report.html", "table.tex", "results.csv"} <= {path.name for path in here.rglob("*")}
    assert (here / "outputs" / "mlflow.db").stat().st_size > 0
    scan(here, *done)


@pytest.mark.parametrize("form", ["${oc.env:A_TOKEN}", "${env:A_TOKEN}", "${oc.decode:${oc.env:A_TOKEN}}"])
def test_interpolations_of_the_environment_are_refused(here: Path, command: Command, form: str) -> None:
    done = command("study", "./odd.yaml", f"note='{form}'")
    assert done.code == 2
    (here / "odd.yaml").write_text(STUDY.replace("$HOME", form))
    other = command("study", "./odd.yaml")
    assert other.code == 2
    scan(here, done, other)
