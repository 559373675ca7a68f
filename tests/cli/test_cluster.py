"""Files that start clusters: what prints is what Slurm's shell, Kubernetes, Ray's launcher and a laptop accept."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from fpl_tune.core.errors import EnvironmentProblem

from .conftest import Command

SIZES = {"nodes": 3, "gpus": 4, "cpus": 16, "memory": 64}
Template = Callable[..., str]


@pytest.fixture
def made(command: Command) -> Template:
    """made("slurm", nodes=2): the file that is printed."""

    def call(kind: str, *overrides: str, **options: Any) -> str:
        given = [f"--{name}={value}" for name, value in {**SIZES, **options}.items()]
        done = command("cluster", "template", kind, "lambda_sweep", *overrides, *given)
        assert done.code == 0, done.err
        return done.out

    return call


def shell_accepts(text: str) -> None:
    assert subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False).stderr == ""
    if shutil.which("shellcheck"):
        done = subprocess.run(
            ["shellcheck", "-s", "bash", "-"], input=text, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("gpus", [0, 4])
def test_slurm_directives_come_first_and_say_what_was_asked(nodes: int, gpus: int, made: Template) -> None:
    text = made("slurm", "axes.method.lam=[0,0.5]", nodes=nodes, gpus=gpus)
    shell_accepts(text)
    before, _, after = text.partition("set -euo")
    assert "#SBATCH" not in after, "sbatch stops reading them at the first command"
    asked = dict(line.removeprefix("#SBATCH --").split("=", 1) for line in before.splitlines() if "#SBATCH" in line)
    assert (asked["nodes"], asked["cpus-per-task"], asked["mem"]) == (str(nodes), "16", "64G")
    assert asked.get("gpus-per-node") == (str(gpus) if gpus else None)
    assert ("--exclude" in text) == (nodes > 1)
    steps = [line.split() for line in text.splitlines() if line.startswith("srun ")]
    assert all("--cpus-per-task=16" in step for step in steps), "since 22.05, a step does not inherit it"
    assert len(steps) == (2 if nodes > 1 else 1)
    assert "fpl-tune study lambda_sweep 'axes.method.lam=[0,0.5]' &" in text
    assert "RAY_AUTH_TOKEN_PATH" in text


def test_kuberay_has_what_the_resource_requires(made: Template) -> None:
    node, policy = yaml.safe_load_all(made("kuberay", "axes.method.lam=[0,0.5]"))
    assert (node["apiVersion"], node["kind"]) == ("ray.io/v1", "RayJob")
    assert node["metadata"]["name"] == "fpl-lambda-sweep"
    study = "fpl-tune study lambda_sweep 'axes.method.lam=[0,0.5]'"
    assert node["spec"]["entrypoint"] == f"cd /mnt/fpl-tune && {study}", "where the study file is"
    cluster = node["spec"]["rayClusterSpec"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert workers.keys() >= {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    assert workers["replicas"] == 3
    for group in (head, workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "the resource's type"
        (container,) = group["template"]["spec"]["containers"]
        assert container.keys() >= {"name", "image", "resources"}
        claims = {v["name"]: v["persistentVolumeClaim"]["claimName"] for v in group["template"]["spec"]["volumes"]}
        assert [(m["mountPath"], claims[m["name"]]) for m in container["volumeMounts"]] == [
            ("/mnt/fpl-tune", "fpl-tune")
        ]
        assert {e["name"]: e["value"] for e in container["env"]}["FPL_TUNE_OUTPUT"].startswith("/mnt/fpl-tune")
        assert all(isinstance(e["value"], str) for e in container["env"])
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "16", "memory": "64Gi", "nvidia.com/gpu": 4}
    assert "nvidia.com/gpu" not in made("kuberay", gpus=0)
    label = {"fpl-tune.study": "fpl-lambda-sweep"}
    pods = [head["template"], workers["template"], node["spec"]["submitterPodTemplate"]]
    assert all(pod["metadata"]["labels"] == label for pod in pods)
    assert policy["spec"]["podSelector"]["matchLabels"] == label
    (rule,) = policy["spec"]["ingress"]
    own, operator = rule["from"]
    assert own == {"podSelector": {"matchLabels": label}}
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}


def test_aws_is_valid_by_rays_own_schema(made: Template) -> None:
    import jsonschema
    import ray

    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    for gpus in (0, 4):
        node = yaml.safe_load(made("aws", gpus=gpus))
        jsonschema.validate(node, schema)
        types = node["available_node_types"]
        assert node["head_node_type"] in types
        assert types["worker"]["min_workers"] == types["worker"]["max_workers"] == node["max_workers"] == 3
        assert types["worker"]["resources"] == ({"CPU": 16, "GPU": 4} if gpus else {"CPU": 16})
        assert types["worker"]["node_config"]["InstanceType"] == ("g5.12xlarge" if gpus else "m5.4xlarge")
        assert node["file_mounts"] == {"~/study": "."}


def test_data_reach_every_node(made: Template) -> None:
    data = "data.root=/my/images"
    aws = made("aws", data)
    assert yaml.safe_load(aws)["file_mounts"] == {"~/study": ".", "~/data": "/my/images"}
    assert "cd study && RAY_ADDRESS=auto fpl-tune study lambda_sweep data.root=/home/ubuntu/data " in aws
    job, _ = yaml.safe_load_all(made("kuberay", data))
    assert job["spec"]["entrypoint"].endswith("fpl-tune study lambda_sweep data.root=/mnt/data")
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert {"name": "data", "mountPath": "/mnt/data", "readOnly": True} in pod["containers"][0]["volumeMounts"]
        assert [volume["name"] for volume in pod["volumes"]] == ["shared", "data"]
    assert "fpl-tune study lambda_sweep data.root=/my/images &" in made("slurm", data)


@pytest.mark.parametrize("data", [(), ("data.root=/my/images",)])
@pytest.mark.parametrize("gpus", [0, 4])
def test_pods_and_the_policy_are_valid_by_kubernetes_own_schemas(data: tuple[str], gpus: int, made: Template) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    job, policy = yaml.safe_load_all(made("kuberay", *data, gpus=gpus))
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    templates = [*(group["template"] for group in groups), job["spec"]["submitterPodTemplate"]]
    pods = [{"apiVersion": "v1", "kind": "Pod", **template} for template in templates]
    for each in (*pods, policy):
        kubernetes.validate(each, kubernetes.latest_version(), strict=True)


@pytest.mark.parametrize(
    ("words", "instance"),
    [
        ("--gpus 1", "g5.2xlarge"),
        ("--gpus 1 --cpus 4 --memory 16", "g5.xlarge"),
        ("--gpus 8", "g5.48xlarge"),
        ("--gpus 8 --gpu H100", "p5.48xlarge"),
        ("--gpus 8 --gpu a100-40gb", "p4d.24xlarge"),
        ("--gpus 4 --gpu l40s --memory 500", "g6e.24xlarge"),
        ("--gpus 0 --cpus 9", "m5.4xlarge"),
    ],
)
def test_an_instance_has_what_is_asked_for(words: str, instance: str, command: Command) -> None:
    node = yaml.safe_load(command("cluster", "template", "aws", "lambda_sweep", *words.split()).out)
    assert node["available_node_types"]["worker"]["node_config"]["InstanceType"] == instance


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("aws lambda_sweep --gpus 2", "AWS has no instance with 2 GPUs of kind a10g. Write --gpus 1 or 4 or 8."),
        ("aws lambda_sweep --gpus 8 --gpu h10", "Did you mean 'h100'"),
        ("aws lambda_sweep --gpus 1 --gpu h100 --cpus 17", "the largest, p5.4xlarge, has 16 and 256"),
        ("kuberay lambda_sweep --gpus 1 --gpu h100", "--gpu names the kind of --gpus for slurm and aws"),
    ],
)
def test_what_no_instance_has_is_refused(words: str, message: str, command: Command) -> None:
    done = command("cluster", "template", *words.split())
    assert (done.code, message in done.err) == (2, True), done.err


def test_cores_and_memory_are_asked_for_by_gpu(command: Command) -> None:
    text = command("cluster", "template", "slurm", "lambda_sweep", "--gpus", "4", "--gpu", "a100").out
    for line in ("--gpus-per-node=a100:4", "--cpus-per-task=32", "--mem=128G"):
        assert f"#SBATCH {line}\n" in text


@pytest.mark.parametrize(
    ("kind", "word", "message"),
    [
        ("slurm", "--nodes=0", "Invalid value for '--nodes'"),
        ("slurm", "method.lamda=1", "Did you mean 'lam'"),
        ("kuberay", "title='a: b'", "cannot be written to YAML"),
    ],
)
def test_what_cannot_be_is_refused(kind: str, word: str, message: str, command: Command) -> None:
    done = command("cluster", "template", kind, "lambda_sweep", word)
    assert (done.code, message in done.err) == (2, True)


def test_waiting_ends_with_the_nodes_or_with_what_was_found_instead(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, answers = [0.0], list[int | EnvironmentProblem]()

    def alive(address: str) -> int:
        assert address == "head:1"
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, EnvironmentProblem):
            raise answer
        return answer

    monkeypatch.setattr("fpl_tune.execute.ray.alive", alive)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    words = ("cluster", "wait", "head:1", "--nodes", "3", "--seconds", "9")
    away = EnvironmentProblem("nothing answers")
    answers[:] = [away, 1, 3]
    done = command(*words)
    assert (done.code, done.out, done.err) == (0, "", "3 nodes at head:1\n")
    for answer, said in ((2, "has 2"), (away, "does not answer (nothing answers)")):
        answers[:] = [answer]
        now[0] = 0.0
        done = command(*words)
        assert done.code == 3
        assert f"The cluster at head:1 must have 3 nodes within 9 s, but {said}." in done.err
        assert 9 <= now[0] <= 10


STUDY = """
defaults: [/study, {override /method: promptfl}, _self_]
data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}
partition: {n_clients: 4}
protocol: {rounds: 2, epochs: 1}
axes: {optim: {lr: [0.01, 0.1]}}
tracking: {enabled: false}
"""


def processes_in(folder: Path) -> list[str]:
    """Commands that stand in a folder: what a script that ran there has left."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == folder:
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def test_the_local_script_runs_a_study_and_stops_only_its_own_ray(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(STUDY)
    there = tmp_path / "there"  # where nothing else stands
    there.mkdir()
    bin_ = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "FPL_TUNE_NODE_SECONDS": "200"}
    environment |= {"FPL_TUNE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    words = ["cluster", "template", "local", str(tmp_path / "tiny.yaml"), "--cpus", "1"]
    with (there / "go.sh").open("w") as script:
        subprocess.run(
            [sys.executable, "-m", "fpl_tune", *words], cwd=there, env=environment, check=True, stdout=script
        )
    shell_accepts((there / "go.sh").read_text())
    done = subprocess.run(
        ["bash", "go.sh"], cwd=there, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = pd.read_csv(there / "outputs" / "tiny" / "results.csv")
    assert set(table["status"]) == {"done"}
    assert len(set(table["cell"])) == 2
    until = time.monotonic() + 60  # workers leave once they see that their node is gone
    while processes_in(there) and time.monotonic() < until:
        time.sleep(0.2)
    assert processes_in(there) == []
