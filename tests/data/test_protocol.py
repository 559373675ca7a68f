import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.spec import validated
from fpl_tune.data import Dataset, DataSpec, PartitionSpec, Split, export_split, load, resolve, split
from fpl_tune.data.shapes import STYLES
from fpl_tune.data.splits import UNKNOWN

SMALL = DataSpec("shapes", train_per_class=12, test_per_class=4, shots=4)
PARTITIONS = [
    PartitionSpec("disjoint", n_clients=10),
    PartitionSpec("disjoint", n_clients=10, vary=False),
    PartitionSpec("classes", n_clients=15),
    PartitionSpec("dirichlet", n_clients=6, alpha=0.5, min_size=5),
    PartitionSpec("domain"),
    PartitionSpec("domain_dirichlet", n_clients=3, alpha=0.5, min_size=2),
    PartitionSpec("iid", n_clients=7),
    PartitionSpec("disjoint", n_clients=5, evaluation="base_to_novel"),
    PartitionSpec("domain", evaluation="leave_one_domain_out", held_out=["photo"]),
    PartitionSpec("disjoint", n_clients=5, evaluation="open_set"),
    PartitionSpec("domain", evaluation="domains", held_out=["photo"]),
]


@pytest.fixture(scope="module")
def shapes() -> Dataset:
    return load(SMALL)


def same(a: Split, b: Split) -> bool:
    arrays = zip([*a.train, *a.val, *a.tests["test"].index], [*b.train, *b.val, *b.tests["test"].index], strict=True)
    return all(np.array_equal(x, y) for x, y in arrays)


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: f"{p.name}-{p.evaluation}-{p.vary}")
def test_what_every_split_holds(shapes: Dataset, partition: PartitionSpec) -> None:
    drawn = split(shapes, SMALL, partition, seed=1)
    for mine, held, labels in zip(drawn.train, drawn.val, drawn.train_label, strict=True):
        assert len(mine)
        assert len(held)
        assert not set(mine.tolist()) & set(held.tolist())
        assert np.array_equal(shapes.train.label[mine], labels)
        assert np.isin(labels, drawn.classes).all()
        assert np.bincount(labels).max() <= 4
    assert not np.isin(np.concatenate(drawn.val), np.concatenate(drawn.train)).any()  # of any client
    if partition.name != "classes":
        everything = np.concatenate([*drawn.train, *drawn.val])
        assert len(np.unique(everything)) == len(everything)
    for name, test in drawn.tests.items():
        assert len(test.index) == drawn.n_clients
        for rows, labels in zip(test.index, test.label, strict=True):
            assert len(rows)
            assert np.array_equal(shapes.test.label[rows], labels)
            assert np.isin(labels, test.classes).any() == (name != UNKNOWN)
    assert drawn.domain.shape == (drawn.n_clients,)
    assert next(iter(drawn.tests)) == "test"


@pytest.mark.parametrize("partition", PARTITIONS, ids=lambda p: f"{p.name}-{p.evaluation}-{p.vary}")
def test_a_split_is_a_function_of_its_arguments(shapes: Dataset, partition: PartitionSpec) -> None:
    first, again, other = (split(shapes, SMALL, partition, seed) for seed in (1, 1, 2))
    assert same(first, again)
    assert first.hash == again.hash
    assert same(first, other) == (not partition.vary)
    assert (first.hash == other.hash) == (not partition.vary)


def test_personal_tests_hold_the_classes_that_the_client_trains_on(shapes: Dataset) -> None:
    drawn = split(shapes, SMALL, PartitionSpec("disjoint", n_clients=10), 0)
    for labels, tested in zip(drawn.train_label, drawn.tests["test"].label, strict=True):
        assert set(labels.tolist()) == set(tested.tolist())
    assert np.array_equal(drawn.tests["test"].classes, np.arange(20))  # logits run over all classes all the same


def test_the_class_assignment_does_not_follow_the_seed(shapes: Dataset) -> None:
    first, other = (split(shapes, SMALL, PartitionSpec("disjoint", n_clients=10), seed) for seed in (1, 2))
    for a, b in zip(first.train_label, other.train_label, strict=True):
        assert set(a.tolist()) == set(b.tolist())
    assert not same(first, other)


def test_base_to_novel_trains_on_the_first_half_and_tests_on_three_sets(shapes: Dataset) -> None:
    odd = replace(shapes, classes=(*shapes.classes, "unicorn"))
    drawn = split(odd, SMALL, PartitionSpec("disjoint", n_clients=5, evaluation="base_to_novel"), 0)
    assert list(drawn.tests) == ["test", "base", "novel"]
    assert drawn.classes.tolist() == list(range(11))  # half of 21, rounded up
    base, novel = drawn.tests["base"], drawn.tests["novel"]
    assert novel.classes.tolist() == list(range(11, 21))
    assert base.shared
    assert novel.shared
    assert not drawn.tests["test"].shared
    assert len(base.index[0]) + len(novel.index[0]) == len(shapes.test)


def test_held_out_domains_have_no_client_and_are_what_is_tested(shapes: Dataset) -> None:
    partition = PartitionSpec("domain", evaluation="leave_one_domain_out", held_out=["photo", "sketch"])
    drawn = split(shapes, SMALL, partition, 0)
    held = [shapes.domains.index(name) for name in partition.held_out]
    assert drawn.n_clients == 4
    assert not np.isin(shapes.train.domain[np.concatenate(drawn.train)], held).any()
    assert set(shapes.test.domain[drawn.tests["test"].index[0]].tolist()) == set(held)
    assert set(shapes.test.domain[np.concatenate(drawn.tests["own"].index)].tolist()) == set(drawn.domain.tolist())


def test_whole_target_domains_move_their_training_images_to_the_test_pool() -> None:
    spec = replace(SMALL, whole_test=["photo"])
    data = load(spec)
    partition = PartitionSpec("domain", evaluation="leave_one_domain_out", held_out=["photo"])
    drawn = split(data, spec, partition, 0)
    rows = drawn.tests["test"].index[0]
    assert len(rows) == 20 * (12 + 4)
    assert len({data.test.names[i] for i in rows}) == len(rows)
    moved = next(i for i in rows.tolist() if "/train/" in data.test.names[i])
    whole = load(SMALL)
    original = whole.train.names.index(data.test.names[moved])
    assert np.array_equal(np.asarray(data.test.read(moved)), np.asarray(whole.train.read(original)))


def test_global_protocol_tests_on_every_domain_and_first_on_the_clients_own(shapes: Dataset) -> None:
    partition = PartitionSpec("domain_dirichlet", n_clients=3, alpha=0.5, min_size=2, evaluation="domains")
    drawn = split(shapes, SMALL, partition, 0)
    assert list(drawn.tests) == ["test", *(f"domain/{name}" for name in shapes.domains)]
    assert drawn.domain.tolist() == np.repeat(np.arange(6), 3).tolist()  # neighbours share a domain
    for rows, domain in zip(drawn.tests["test"].index, drawn.domain, strict=True):
        assert np.array_equal(rows, np.flatnonzero(shapes.test.domain == domain))


def test_hash_sees_labels_clients_and_files(shapes: Dataset) -> None:
    partition = PartitionSpec("iid", n_clients=3)
    hashes = {
        split(shapes, SMALL, partition, 0).hash,
        split(shapes, SMALL, replace(partition, n_clients=4), 0).hash,
        split(shapes, replace(SMALL, shots=3), partition, 0).hash,
        split(load(replace(SMALL, domains=["photo"])), SMALL, partition, 0).hash,
        split(replace(shapes, classes=shapes.classes[::-1]), SMALL, partition, 0).hash,
    }
    assert len(hashes) == 5


def test_auto_takes_the_natural_partition_and_keeps_what_was_said() -> None:
    spec = resolve(SMALL, PartitionSpec())
    assert (spec.name, spec.n_clients) == ("disjoint", 10)
    assert resolve(SMALL, PartitionSpec(n_clients=4, vary=False)) == replace(spec, n_clients=4, vary=False)
    cifar = resolve(DataSpec("cifar10"), PartitionSpec(alpha=0.1))
    assert (cifar.name, cifar.n_clients, cifar.alpha, cifar.min_size) == ("dirichlet", 100, 0.1, 10)
    assert resolve(DataSpec("cifar10"), PartitionSpec("iid")).n_clients == 10


# ---- the defects of published code: named, loud, off by default ------------------------------------------------------


def signal(drawn: Split, data: Dataset) -> float:
    """Share of training labels that are those of their images."""
    right = [data.train.label[i] == labels for i, labels in zip(drawn.train, drawn.train_label, strict=True)]
    return float(np.concatenate(right).mean())


def test_scrambled_labels_lose_the_images_and_keep_the_clients_label_histogram(shapes: Dataset) -> None:
    honest = PartitionSpec("domain_dirichlet", n_clients=3, alpha=0.3, min_size=2)
    spec = replace(SMALL, shots=None)
    default = split(shapes, spec, honest, 0)
    with pytest.warns(UserWarning, match="compat_scrambled_labels"):
        scrambled = split(shapes, spec, replace(honest, compat_scrambled_labels=True), 0)
    assert signal(default, shapes) == 1
    assert signal(scrambled, shapes) < 0.3
    for client in range(default.n_clients):
        held, kept = (
            np.bincount(np.concatenate([s.train_label[client], s.val_label[client]]), minlength=20)
            for s in (default, scrambled)
        )
        assert np.array_equal(held, kept)
        tested, still = (np.sort(s.tests["test"].label[client]) for s in (default, scrambled))
        assert np.array_equal(tested, still)
    assert scrambled.hash != default.hash
    first = scrambled.tests["test"].index
    domain_start = np.flatnonzero(shapes.test.domain == 0)
    assert all(np.array_equal(np.sort(rows), domain_start[: len(rows)]) for rows in first[:3])


def test_permuted_class_names_are_a_loud_option_and_not_the_default(shapes: Dataset) -> None:
    with pytest.warns(UserWarning, match="permute_classnames=3"):
        permuted = load(replace(SMALL, permute_classnames=3))
    assert permuted.classes != shapes.classes
    assert sorted(permuted.classes) == sorted(shapes.classes)
    assert np.array_equal(permuted.train.label, shapes.train.label)


def test_the_fixed_split_ignores_the_seed_and_the_default_does_not(shapes: Dataset) -> None:
    partition = PartitionSpec("domain_dirichlet", n_clients=3, alpha=0.5, min_size=1)
    spec = replace(SMALL, shots=None, val=0.0)
    assert not same(split(shapes, spec, partition, 1), split(shapes, spec, partition, 2))
    with pytest.warns(UserWarning, match="compat_fixed_split"):
        fixed = [split(shapes, spec, replace(partition, compat_fixed_split=True), seed) for seed in (1, 2)]
    assert same(*fixed)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"name": "disjont"}, "Did you mean 'disjoint'"),
        ({"name": "disjoint", "n_clients": 21}, "20 disjoint classes cannot be dealt to 21 clients"),
        ({"name": "classes", "classes_per_client": 21}, "at most the number of classes"),
        ({"name": "dirichlet_coarse", "n_clients": 2}, "only cifar100 has"),
        ({"name": "dirichlet", "n_clients": 500, "min_size": 50}, "cannot give 500 clients 50 each"),
        ({"evaluation": "leave_one_domain_out"}, "held_out"),
        ({"name": "domain", "held_out": ["phot"]}, "Did you mean 'photo'"),
        ({"name": "domain", "held_out": list(STYLES)}, "leaves no domain"),
        ({"name": "iid", "n_clients": 1000}, "no image in 'test'"),
        ({"name": "iid", "n_clients": 3000}, "have no training image"),
        ({"name": "file"}, r"partition\.file"),
        ({"name": "disjoint", "n_clients": 5, "compat_fixed_split": True}, "defect of Dirichlet"),
    ],
)
@pytest.mark.filterwarnings("ignore:partition.compat")
def test_what_cannot_be_is_refused_in_one_line(shapes: Dataset, partition: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        split(shapes, SMALL, validated(PartitionSpec, partition, "partition"), 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domains": ["photo", "photo"]}, "different domains"),
        ({"domains": ["pohto"]}, "Did you mean 'photo'"),
        ({"classes": "colour"}, "Known: object, shape"),
        ({"name": "shape"}, "Did you mean 'shapes'"),
        ({"transform": "imagenet"}, "no data.transform"),
        ({"whole_test": ["photos"]}, "Did you mean 'photo'"),
    ],
)
def test_bad_data_options_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(validated(DataSpec, {**asdict(SMALL), **change}, "data"))


def test_caps_keep_every_class_and_domain(shapes: Dataset) -> None:
    capped = load(replace(SMALL, max_train=5, max_test=1))
    groups = capped.train.domain * 20 + capped.train.label
    assert (np.bincount(groups) == 5).all()
    assert (np.bincount(capped.test.domain * 20 + capped.test.label) == 1).all()
    assert set(capped.train.names) < set(shapes.train.names)
    again = shapes.train.names.index(capped.train.names[7])
    assert np.array_equal(np.asarray(capped.train.read(7)), np.asarray(shapes.train.read(again)))


def test_chosen_domains_come_in_the_order_asked_for(shapes: Dataset) -> None:
    some = load(replace(SMALL, domains=["sketch", "clipart"]))
    assert some.domains == ("sketch", "clipart")
    row = int(np.flatnonzero(some.test.domain == 1)[0])
    same_row = shapes.test.names.index(some.test.names[row])
    assert shapes.domains[shapes.test.domain[same_row]] == "clipart"
    assert np.array_equal(np.asarray(some.test.read(row)), np.asarray(shapes.test.read(same_row)))


def test_label_noise_grows_over_the_clients_and_leaves_test_labels(shapes: Dataset) -> None:
    data = replace(SMALL, shots=None)
    drawn = split(shapes, data, PartitionSpec("iid", n_clients=5, label_noise=0.8), seed=1)
    clean = split(shapes, data, PartitionSpec("iid", n_clients=5), seed=1)
    assert same(drawn, clean)
    for held, given in ((drawn.train, drawn.train_label), (drawn.val, drawn.val_label)):
        wrong = [(shapes.train.label[rows] != labels).mean() for rows, labels in zip(held, given, strict=True)]
        assert wrong[0] == 0
        np.testing.assert_allclose(wrong, [0, 0.2, 0.4, 0.6, 0.8], atol=0.1)
    for labels in (*drawn.train_label, *drawn.val_label):
        assert np.isin(labels, drawn.classes).all()
    for rows, labels in zip(drawn.tests["test"].index, drawn.tests["test"].label, strict=True):
        assert np.array_equal(shapes.test.label[rows], labels)
    assert drawn.hash != clean.hash


@pytest.mark.parametrize("n_clients", [1, 3])
def test_where_all_labels_are_noise_the_last_client_has_none_of_its_own(shapes: Dataset, n_clients: int) -> None:
    drawn = split(
        shapes, replace(SMALL, shots=None), PartitionSpec("iid", n_clients=n_clients, label_noise=1.0), seed=1
    )
    assert (shapes.train.label[drawn.train[-1]] != drawn.train_label[-1]).all()


FEW = DataSpec("shapes", train_per_class=6, test_per_class=3, shots=3, domains=["photo", "sketch"])
DATA = load(FEW)
BASE_TO_NOVEL = PartitionSpec("disjoint", n_clients=5, evaluation="base_to_novel")


def arrays(drawn: Split) -> list[np.ndarray]:
    held = [drawn.classes, drawn.domain, *drawn.train, *drawn.train_label, *drawn.val, *drawn.val_label]
    for test in drawn.tests.values():
        held += [test.classes, *test.index, *test.label]
    return held


@pytest.mark.parametrize("partition", [PartitionSpec("iid", n_clients=4), BASE_TO_NOVEL], ids=lambda p: p.evaluation)
def test_an_imported_split_is_the_exported_one(tmp_path: Path, partition: PartitionSpec) -> None:
    drawn = split(DATA, FEW, partition, 3)
    path = export_split(drawn, DATA, tmp_path / "deep" / "split.json")
    read = split(DATA, FEW, PartitionSpec("file", file=str(path)), seed=99)
    assert read.hash == drawn.hash
    assert list(read.tests) == list(drawn.tests)
    assert all(np.array_equal(a, b) for a, b in zip(arrays(read), arrays(drawn), strict=True))
    assert [test.shared for test in read.tests.values()] == [test.shared for test in drawn.tests.values()]
    assert [p.name for p in path.parent.iterdir()] == ["split.json"]


@pytest.mark.filterwarnings("ignore:partition.compat")
def test_labels_travel_with_the_files(tmp_path: Path) -> None:
    scrambled = split(DATA, FEW, PartitionSpec("iid", n_clients=4, compat_scrambled_labels=True), 0)
    path = export_split(scrambled, DATA, tmp_path / "split.json")
    read = split(DATA, FEW, PartitionSpec("file", file=str(path)), 0)
    assert all(np.array_equal(a, b) for a, b in zip(read.train_label, scrambled.train_label, strict=True))
    assert any((DATA.train.label[i] != k).any() for i, k in zip(read.train, read.train_label, strict=True))


def changed(path: Path, edit: Any) -> PartitionSpec:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))
    return PartitionSpec("file", file=str(path))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c["train"][0]["labels"].__setitem__(0, 5), r"but its content the hash \w+: it was changed"),
        (lambda c: c["train"][0]["files"].pop(), "labels and files differ in number"),
        (lambda c: c.update(class_names=["cat", "dog"]), "is a split of 'shapes' with 2 classes"),
        (lambda c: c.pop("val"), "is not an exported split"),
        (lambda c: c.update(version=99), "no split that this version exports"),
        (lambda c: c.update(domain=["moon"] * 4), "is not an exported split"),
    ],
)
def test_what_was_changed_after_the_export_is_refused(tmp_path: Path, edit: Any, message: str) -> None:
    drawn = split(DATA, FEW, PartitionSpec("iid", n_clients=4), 0)
    path = export_split(drawn, DATA, tmp_path / "split.json")
    with pytest.raises(ConfigError, match=message):
        split(DATA, FEW, changed(path, edit), 0)


def test_images_that_are_not_here_are_counted(tmp_path: Path) -> None:
    drawn = split(DATA, FEW, PartitionSpec("domain"), 0)
    path = export_split(drawn, DATA, tmp_path / "split.json")
    photos = load(replace(FEW, domains=["photo"]))
    with pytest.raises(EnvironmentProblem, match=r"60 images that .* are not in shapes-shape-train, first sketch"):
        split(photos, FEW, PartitionSpec("file", file=str(path)), 0)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"No such file.* names an exported split"):
        split(DATA, FEW, PartitionSpec("file", file=str(tmp_path / "none.json")), 0)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(EnvironmentProblem, match="Cannot read"):
        split(DATA, FEW, PartitionSpec("file", file=str(tmp_path / "bad.json")), 0)
    drawn = split(DATA, FEW, PartitionSpec("iid", n_clients=2), 0)
    with pytest.raises(EnvironmentProblem, match="Cannot write the split"):
        export_split(drawn, DATA, tmp_path / "bad.json" / "split.json")
