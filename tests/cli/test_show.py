"""Help, `fpl-tune show`, `status` and `ls`: without heavy libraries, and with all test sets."""

import csv
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from fpl_tune.cli.show import print_results
from fpl_tune.study.cells import shown as shown_as
from fpl_tune.study.results import make_result
from fpl_tune.study.schema import Effective
from fpl_tune.study.store import Store

from ..conftest import Asked, MakeStore, drawn_history, there
from .conftest import TINY, Command, run_in

LIGHT = """
import json, sys
sys.argv = ["fpl-tune", *json.loads(sys.argv[1])]
try:
    from fpl_tune.cli import main
    main()
except SystemExit as ended:
    heavy = ("torch", "numpy", "pandas", "hydra", "omegaconf", "ray", "mlflow", "optuna", "open_clip", "scipy")
    print(ended.code, [name for name in heavy if name in sys.modules])
"""


@pytest.mark.parametrize("words", ["-h", "show lambda_sweep", "show lambda_sweep --format csv",
                                   "show lambda_sweep --best", "status lambda_sweep",
                                   "status", "ls studies", "ls methods"])  # fmt: skip
def test_help_and_results_are_printed_without_heavy_libraries(words: str, home: Path) -> None:
    call = [sys.executable, "-c", LIGHT, json.dumps(words.split())]
    done = subprocess.run(call, capture_output=True, text=True, check=True, cwd=home)
    *lines, ended = done.stdout.splitlines()
    assert ended == "0 []", done.stderr
    assert lines


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, feature_cache: Path) -> Path:
    """A home with a study that tests base and novel classes."""
    home = tmp_path_factory.mktemp("split")
    (home / "studies").mkdir()
    (home / "studies" / "split.yaml").write_text(
        TINY.replace("{n_clients: 6}", "{n_clients: 5, evaluation: base_to_novel}").replace("rounds: 3", "rounds: 1")
    )
    run_in(home, feature_cache, "split")
    return home


def test_base_novel_and_their_harmonic_means_are_columns(split: Path, here: Path, command: Command) -> None:
    shutil.copytree(split, here, dirs_exist_ok=True)
    rows = list(csv.DictReader(command("show", "split", "--format", "csv").out.splitlines()))
    base, novel, two, three, own = (
        float(rows[0][name])
        for name in ("test/base/acc_mean", "test/novel/acc_mean", "test/base_novel_harmonic_mean",
                     "test/harmonic_mean", "mean")
    )  # fmt: skip
    assert min(base, novel) <= two <= max(base, novel)
    assert min(base, novel, own) <= three <= max(base, novel, own)
    table = command("show", "split").out
    header = next(line for line in table.splitlines() if "novel" in line)
    assert [name.strip() for name in header.strip("┃").split("┃")] == [
        "cell", "status", "validation", "test", "base", "novel", "HM(test, base, novel)", "HM(base, novel)", "seeds"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("edit", "note"),
    [
        (("axes.method.lam=[0.5]",), "1 cell with results is not asked for: 'axes.method.lam=[0,0.5]' shows them too"),
        (("axes.method.lam=[0.5]", "references=[]"),
         "1 cell with results is not asked for: 'axes.method.lam=[0,0.5]' shows them too; of 1 other cell, fpl-tune ls "
         "studies lambda_sweep lists them"),
        (("references=[]",), "1 cell with results is not asked for: fpl-tune ls studies lambda_sweep lists them"),
        (("protocol.rounds=1",), "3 cells with results are not asked for: protocol.rounds=3 shows them"),
        (("clients.drop=0.3",), "3 cells with results are not asked for: clients.drop=0 shows them"),
        (("data.max_test=2",), "3 cells with results are not asked for: data.max_test=null shows them"),
        ((), ""),
    ],
)  # fmt: skip
def test_cells_that_are_not_asked_for_are_named_with_the_override_that_shows_them(
    home: Path, command: Command, edit: tuple[str, ...], note: str
) -> None:
    whole = {row["label"] for row in json.loads(command("show", "lambda_sweep", "--format", "json").out)}
    planned = command("plan", "lambda_sweep", *edit).out
    ran = command("study", "lambda_sweep", *edit)
    assert ran.code == 0
    for text in (planned, ran.out, command("show", "lambda_sweep").out):
        assert ("not asked for" in text) == bool(note)
        assert note in " ".join(text.split())
    shown = {row["label"] for row in json.loads(command("show", "lambda_sweep", "--format", "json").out)}
    listed = json.loads(command("ls", "studies", "lambda_sweep", "--format", "json").out)
    lost = whole if {"protocol.rounds=1", "clients.drop=0.3", "data.max_test=2"} & {*edit} else whole - shown
    assert {row["cell"] for row in listed} == lost
    for override in re.findall(r"(?<=: )\S+=\S+(?= shows)", note):
        assert "0 cells run" in command("study", "lambda_sweep", override.strip("'")).err


def test_a_warning_is_printed_once_for_a_command(here: Path, command: Command) -> None:
    for name in ("red_fox", "red fox"):
        (here / "photos" / name).mkdir(parents=True)
        for k in range(8):
            Image.new("RGB", (8, 8), (9 * k, 0, 0)).save(here / "photos" / name / f"{k}.png")
    (here / "foxes.yaml").write_text(
        TINY.replace("data: {train_per_class: 12, test_per_class: 3, shots: 4, domains: [clipart]}",
                     "data: {name: folder, root: photos, shots: 2}")
        .replace("{n_clients: 6}", "{name: iid, n_clients: 2}").replace("rounds: 3", "rounds: 1")
    )  # fmt: skip
    photos = ("data=folder", "data.root=photos", "partition=iid", "partition.n_clients=2")
    for words in (("study", "foxes.yaml"), ("data", "show", *photos)):
        said = command(*words)
        assert said.code == 0, said.err
        assert said.err.count("2 classes of folder share prompts") == 1
    checked = command("data", "check", "data=folder", "data.root=photos")
    assert checked.code == 0
    assert "share prompts" in checked.out + checked.err


SEARCHED = "axes: {method: {n_ctx: [2, 4, 8]}}\nseeds: 3\nsearch: {sampler: random, objectives: [%s]}\n"


def test_the_best_cell_comes_with_the_seeds_of_both_its_figures(
    make_store: MakeStore, here: Path, command: Command
) -> None:
    (here / "outputs").mkdir()
    make_store(root=here / "outputs", fill=lambda cell, seed: seed < 3 or cell.number == 2)
    found = json.loads(command("show", "toy", "--best", "--format", "json").out)
    assert (found["cell"], found["compared on seeds"], found["tested on seeds"]) == ("n_ctx=8", [1, 2], [1, 2, 3])
    table = command("show", "toy", "--best").out
    for name, mean in (("validation %", found["val/acc_mean"]), ("test %", found["test/acc_mean"])):
        assert re.search(rf"{name} +│ {100 * mean:.1f}", table)
    assert "bold: highest mean validation accuracy, compared on seeds 1, 2" in " ".join(
        command("show", "toy").out.split()
    )


def test_figures_are_by_the_rule_that_is_asked_for_else_by_the_study_s(
    make_store: MakeStore, here: Path, command: Command
) -> None:
    (here / "outputs").mkdir()
    store = make_store(["report.rule=best_val"], root=here / "outputs")
    wanted = {None: "best_val", "final": "final", "mean_last5": "mean_last5"}
    for asked, rule in wanted.items():
        out = command("show", "toy", *(["--rule", asked] if asked else []), "--format", "csv").out
        means = [float(row["mean"]) for row in csv.DictReader(out.splitlines())]
        assert means == pytest.approx([row["mean"] for row in store.table().summary(rule)])
        assert f"by the rule '{rule}'" in command("show", "toy", *(["--rule", asked] if asked else [])).out


def test_a_front_is_shown_and_no_cell_is_exported_as_the_best(
    make_store: MakeStore, here: Path, command: Command
) -> None:
    (here / "outputs").mkdir()
    store = make_store(body=SEARCHED % "val/acc_mean, train/loss", root=here / "outputs")  # all losses are equal
    (best,) = [cell for cell in store.cells() if cell.label == "n_ctx=8"]
    said = "1 of 3 trials is on the front of val/acc_mean and train/loss: no cell is best"
    shown = command("show", "toy").out
    assert said in " ".join(shown.split())
    assert next(line for line in shown.splitlines() if "n_ctx=8" in line).count("on the front") == 1
    (row,) = json.loads(command("show", "toy", "--best", "--format", "json").out)
    assert (row["id"], row["train/loss"]) == (best.id, 0.25)
    refused = command("export", "toy", "best")
    assert refused.code == 2
    assert (
        f"{said}. On the front: {best.id} (n_ctx=8). Choose one of them by its id, such as --cell {best.id}."
        in refused.err
    )
    assert command("export", "toy", "best", "--cell", best.id).code == 0


def searched(make_store: MakeStore, root: Path, body: str) -> Store:
    """A store of a finished search, whose later trials were stopped after their first seed."""
    store = make_store(body=body, root=root, rounds=2, fill=lambda cell, seed: False)
    asked = Asked(store.spec())
    cells = [*asked.search.references, *asked.all()]
    store.begin(store.spec(), cells, effective=Effective(halving=True))
    store.end(complete=True, exhausted=())
    for place, cell in enumerate(cells):
        early = cell.role == "trial" and place % 3 == 0
        for seed in (1,) if early else (1, 2):
            history = drawn_history(seed, 0.9 - 0.01 * place, rounds=2, clients=4)
            store.put(cell, seed, make_result("done", history))
    return store


def test_a_search_has_a_column_a_field_its_best_trials_and_a_line_for_the_rest(
    make_store: MakeStore, here: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "references: [{method: zeroshot}]\nseeds: 2\nsearch: {sampler: random, trials: 30, confirm: 0}\n"
    store = searched(make_store, here / "outputs", body)
    monkeypatch.setenv("COLUMNS", "80")
    text = command("show", "toy").out
    lines = text.splitlines()
    header = next(line.split() for line in lines if " lr " in line)
    assert header[0] == "trial"
    assert header[-4:] == ["status", "val", "test", "seeds"]
    rows = [line for line in lines if line.startswith(" ") and line.split()[:1] and line.split()[0].isdigit()]
    assert len(rows) == 10
    assert max(map(len, rows)) <= 80
    values = [float(row.replace("best", "").split()[-5]) for row in rows]
    assert values == sorted(values, reverse=True), "completed ones, by validation"
    assert "best" in rows[0]
    assert "pruned" not in " ".join(rows)
    trials = [cell for cell in store.cells() if cell.role == "trial"]
    early = sum(store.row(cell).state == "pruned" for cell in trials)
    assert f"{len(trials) - 10} more trials with --format csv, {early} of them stopped early" in " ".join(text.split())
    assert any(line.split()[:1] == ["zeroshot"] for line in lines[: lines.index("trials")]), "before the trials"
    rates = {f"{cell.varied['optim.lr']:.3g}" for cell in trials}
    assert rows[0].split()[header.index("lr")] in rates, "three significant digits"
    (best,) = (cell for cell in trials if cell.trial_number == int(rows[0].split()[0]))
    assert rows[0].split()[header.index("lr")] == f"{best.varied['optim.lr']:.3g}", "by the number of the trial"
    assert len(list(csv.DictReader(command("show", "toy", "--format", "csv").out.splitlines()))) == 1 + len(trials)


@pytest.mark.parametrize(
    ("metric", "columns"),
    [("test/acc_mean", ["test", "base", "novel"]), ("test/base/acc_mean", ["test base accuracy (%)", "novel"])],
)
def test_a_test_set_has_one_column(
    metric: str,
    columns: list[str],
    make_store: MakeStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = make_store([f"report.metric={metric}"], fill=lambda cell, seed: False)
    for cell in store.cells():
        history = drawn_history(1, 0.5, rounds=4, clients=3)
        history = [{**record, "test/base/acc_mean": 0.6, "test/novel/acc_mean": 0.4} for record in history]
        store.put(cell, 1, make_result("done", history))
    monkeypatch.setenv("COLUMNS", "200")
    print_results(store, "final", "table")
    header = next(line for line in capsys.readouterr().out.splitlines() if "novel" in line)
    names = [name.strip() for name in header.strip("┃").split("┃")]
    assert names == ["cell", "status", "validation", *columns, "seeds"]


SEVEN = """
seeds: 2
search:
  sampler: random
  trials: 20
  confirm: 0
  space:
    optim.lr: {low: 0.0001, high: 1.0, log: true}
    optim.momentum: {low: 0.0, high: 0.99}
    optim.weight_decay: {low: 0.00001, high: 0.1, log: true}
    method.n_ctx: [1, 2, 4, 8, 16]
    protocol.epochs: [1, 2, 3]
    protocol.participation: {low: 0.25, high: 1.0}
    optim.batch: [8, 16, 32]
  only: [optim.lr, optim.momentum, optim.weight_decay, method.n_ctx, protocol.epochs, protocol.participation,
         optim.batch]
"""


def test_a_search_s_table_fits_the_console_and_names_the_columns_that_it_leaves_out(
    make_store: MakeStore, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # which wraps captions, too
    store = searched(make_store, here / "outputs", SEVEN)
    fields = {"lr", "momentum", "weight_decay", "n_ctx", "epochs", "participation", "batch"}
    trials = {str(cell.trial_number): cell for cell in store.cells() if cell.role == "trial"}
    dotted = {name.rpartition(".")[2]: name for cell in trials.values() for name in cell.varied}
    assert dotted.keys() == fields

    def shown(width: str) -> tuple[set[str], str]:
        """The fields that have a column, and the whole text, in one line."""
        monkeypatch.setenv("COLUMNS", width)
        print_results(store, "final", "table")
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= int(width)
        header = next(line.split() for line in lines if line.split()[:1] == ["trial"])
        assert header[0] == "trial"
        assert header[-4:] == ["status", "val", "test", "seeds"]
        assert {*header[1:-4]} <= fields, "no heading is broken"
        rows = [
            line.split() for line in lines if line.startswith(" ") and line.split()[:1] and line.split()[0] in trials
        ]
        assert len(rows) == 10
        for row in rows:
            texts = [shown_as(trials[row[0]].varied[dotted[name]], 3) for name in header[1:-4]]
            assert row[1 : 1 + len(texts)] == texts, "no number is broken"
        return {*header[1:-4]}, " ".join(" ".join(lines).split())

    columns, text = shown("80")
    left = there(re.search(r"columns without room: ([\w, ]+)", text))[1].partition(";")[0].split(", ")
    assert columns
    assert {*left} == fields - columns != set()
    columns, text = shown("400")
    assert columns == fields
    assert "without room" not in text


def test_a_search_of_several_methods_has_the_table_of_the_tuned_ones(
    make_store: MakeStore, here: Path, command: Command
) -> None:
    body = "axes: {method: [promptfl, fedprox]}\nseeds: 2\nsearch: {sampler: random, trials: 8, confirm: 0}\n"
    searched(make_store, here / "outputs", body)
    text = command("show", "toy").out
    rows = [line.split() for line in text.splitlines()]
    assert [row[0] for row in rows if row[:1] in (["promptfl"], ["fedprox"])] == ["promptfl", "fedprox"] * 2
    first, second = text.partition("chosen values")[2].split("\n  fedprox ")
    assert " mu " not in first
    assert " mu " in f" {second}"
    assert "16 trials with --format csv" in text


def test_a_study_ends_with_the_answer_the_table_and_where_its_pages_are(home: Path, command: Command) -> None:
    out = command("study", "lambda_sweep").out
    said, page, results = (out.index(text) for text in (" λ ", "report   ", "results  "))
    assert said < out.index("┏") < page < results
    sentence = out.splitlines()[1]
    assert " λ " in sentence
    assert f">{sentence}</p>" in (home / "outputs" / "lambda_sweep" / "report.html").read_text()
    assert "MLflow   " not in out, "tracking is off"


CLAIMS = """report:
  claims:
    more: {says: Eight tokens beat two., cells: {n_ctx: 8}, versus: {n_ctx: 2}}
    less: {says: Two tokens beat eight., cells: {n_ctx: 2}, versus: {n_ctx: 8}}
"""


def test_claims_are_listed_with_their_verdicts_and_reasons(make_store: MakeStore, here: Path, command: Command) -> None:
    body = "axes: {method: {n_ctx: [2, 4, 8]}}\nseeds: 3\n"
    make_store(body=body + CLAIMS, root=here / "outputs")
    words = ("show", "toy", "--claims")
    rows = json.loads(command(*words, "--format", "json").out)
    assert [(row["says"], row["status"]) for row in rows] == [
        ("Eight tokens beat two.", "holds"), ("Two tokens beat eight.", "fails")
    ]  # fmt: skip
    table = " ".join(command(*words).out.split())
    assert "1 of 2 claims holds, 1 fails, 0 are undecided" in table
    for row in rows:
        assert row["status"] in table
        assert row["reason"] in table
    make_store(body=body, name="silent", root=here / "outputs")
    done = command("show", "silent", "--claims")
    assert (done.code, done.out) == (2, "")
    assert "silent checks no claims." in done.err


def test_export_counts_trials_as_tables_do(make_store: MakeStore, here: Path, command: Command) -> None:
    body = "{}references: [{{method: zeroshot}}]\nseeds: 2\nsearch: {{sampler: random, trials: 4, confirm: 0}}\n"
    store = searched(make_store, here / "outputs", body.format(""))
    for cell in (cell for cell in store.cells() if cell.role == "trial"):
        assert cell.number != cell.trial_number
        assert command("export", "toy", f"trial{cell.trial_number}", "--cell", str(cell.trial_number)).code == 0
        assert (here / f"trial{cell.trial_number}" / f"toy-{cell.id}.yaml").is_file()
    shutil.rmtree(store.folder)
    searched(make_store, here / "outputs", body.format("axes: {data: {shots: [2, 4]}}\n"))
    refused = command("export", "toy", "other", "--cell", "1")
    assert (refused.code, (here / "other").exists()) == (2, False)
    assert "toy has several cells '1'. Name one by its id: " in refused.err


def test_trials_are_exported_to_a_storage_of_optuna(make_store: MakeStore, here: Path, command: Command) -> None:
    import optuna

    body = "references: [{method: zeroshot}]\nseeds: 2\nsearch: {sampler: random, trials: 8, confirm: 0}\n"
    store = searched(make_store, here / "outputs", body)
    done = command("export", "toy", "--optuna", f"sqlite:///{here}/trials.db")
    assert done.code == 0, done.err
    (study,) = optuna.get_all_study_summaries(f"sqlite:///{here}/trials.db")
    trials = [cell for cell in store.cells() if cell.role == "trial"]
    assert study.n_trials == len(trials)
    assert done.out.startswith(f"'{study.study_name}': {len(trials)} trials in sqlite:///{here}/trials.db; ")


MINE = """
import fpl_tune.method as fl
from fpl_tune.methods.promptfl import PromptFL

@fl.dataclass
class Mine(PromptFL):
    pass
"""


def test_results_of_a_method_whose_file_is_elsewhere_are_shown(
    make_store: MakeStore, here: Path, command: Command
) -> None:
    (here / "mine.py").write_text(MINE)
    body = "axes: {method: ['mine:Mine', promptfl]}\nseeds: 2\nsearch: {sampler: random, trials: 3, only: [optim.lr]}\n"
    searched(make_store, here / "outputs", body)
    whole = command("show", "toy").out
    (here / "mine.py").unlink()
    sys.modules.pop("mine", None)
    moved = command("show", "toy")
    unmarked = (whole.replace("†", " ").split(), moved.out.replace("†", " ").split())
    assert unmarked[0] == unmarked[1], "without the marks of ends of ranges"
    assert command("report", "toy", "--out", str(here / "page")).code == 0
    assert (here / "page" / "values.tex").is_file()
