"""Names of libraries that are not their public API: CONTRIBUTING.md lists them, with the tests of the others."""

import json
from pathlib import Path

import mlflow.server
import pytest
import ray
import torch
import torch.nn.functional as F

from fpl_tune.clip import blocks
from fpl_tune.execute.ray.connect import ENVIRONMENT
from fpl_tune.study.tracking import Tracked, paths
from fpl_tune.track.writer import KIND, VIEW, page_state


def test_the_page_of_mlflow_knows_the_view_and_the_links() -> None:
    page = "".join(path.read_text("utf-8") for path in Path(mlflow.server.__file__).parent.glob("js/build/**/*.js"))
    tracked = Tracked(experiment="1", parent="a", runs={"cell": "b"}, best=["cell"])
    state = json.loads(page_state(tracked, ["lam"], ["lam"], ["test_acc"], statuses=True))
    names = [VIEW, *KIND, *KIND.values(), *state, *state["compareRunCharts"][0], *state["compareRunSections"][0]]
    for link in paths(tracked).values():
        route, _, query = link.partition("?")
        names += [route.rpartition("/")[2], *(value.partition("=")[0] for value in query.split("&"))]
    assert not [name for name in names if name not in page]


@pytest.mark.parametrize("name", [name for name in ENVIRONMENT if name.startswith("RAY_") and not name.isupper()])
def test_ray_reads_the_settings_of_its_processes(name: str) -> None:
    program = (Path(ray.__file__).parent / "core/src/ray/raylet/raylet").read_bytes()
    assert name.removeprefix("RAY_").encode() in program


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
def test_linear_layers_run_the_kernel_of_onednn() -> None:
    x, weight, bias = torch.randn(4, 8), torch.randn(16, 8), torch.randn(16)
    with torch.profiler.profile() as profile:
        out = blocks.linear(x, weight, bias)
    assert "mkldnn::_linear_pointwise" in {event.key for event in profile.key_averages()}
    torch.testing.assert_close(out, F.linear(x, weight, bias))
