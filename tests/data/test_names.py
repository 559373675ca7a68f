"""Names of classes: which share a prompt, how the user sets them, and names that are not text."""

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fpl_tune.config import compose_run, identity
from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.data import Dataset, DataSpec, PartitionSpec, load, split
from fpl_tune.data import sources as catalogue
from fpl_tune.data.inspection import check
from fpl_tune.data.spec import cross_data

from .conftest import MakeImage

Folders = Callable[..., Path]


def told(spec: DataSpec) -> tuple[Dataset, list[str]]:
    """A data set, and the warnings that loading it gives."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = load(spec)
    return data, [str(warning.message) for warning in caught]


ALIKE = {
    "underscore": (["red_fox", "red fox"], "'red fox' (0: red fox, 1: red_fox)"),
    "case": (["Crane", "crane", "dog"], "'Crane' (0: Crane, 1: crane)"),
    "case_of_other_scripts": (["STRASSE", "straße"], "'STRASSE' (0: STRASSE, 1: straße)"),
    "trailing_blank": (["dog", "dog "], "'dog' (0: dog, 1: dog )"),
    "leading_underscore": (["_dog", "dog"], "' dog' (0: _dog, 1: dog)"),
    "two_blanks": (["ice cream", "ice__cream"], "'ice cream' (0: ice cream, 1: ice__cream)"),
    "three": (["a b", "a_b", "A_b"], "'A b' (0: A_b, 1: a b, 2: a_b)"),
    "two_pairs": (["a b", "a_b", "c d", "c_d"], "'a b' (0: a b, 1: a_b); 'c d' (2: c d, 3: c_d)"),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_classes_of_one_prompt_are_named_in_one_warning_and_in_the_notes(kind: str, folders: Folders) -> None:
    classes, says = ALIKE[kind]
    spec = DataSpec("folder", root=str(folders(*classes, n=2)))
    data, (warning,) = told(spec)
    assert says in warning
    assert warning == data.notes[-1]
    report = check(spec)
    assert report["notes"][-1] == warning
    assert "\n" not in warning
    label = warning.rpartition("data.names={")[2].partition(":")[0]
    _, after = told(replace(spec, names={label: "something else"}))
    assert not after or says not in after[0], "the remedy is one"


@pytest.mark.parametrize("classes", [["red-fox", "red fox"], ["fox", "foxes"], ["1", "01"], ["a.b", "a b"]])
def test_classes_of_different_prompts_are_not(classes: list[str], folders: Folders) -> None:
    assert told(DataSpec("folder", root=str(folders(*classes, n=2))))[1] == []


def test_classes_of_many_prompts_are_counted(folders: Folders) -> None:
    _, (warning,) = told(
        DataSpec("folder", root=str(folders(*(f"{i}{sign}x" for i in range(7) for sign in "_ "), n=2)))
    )
    assert warning.startswith("14 classes of folder share prompts")
    assert "'4 x' (8: 4 x, 9: 4_x) and 2 more." in warning


def test_a_data_set_with_shared_prompts_is_sound(folders: Folders) -> None:
    report = check(DataSpec("folder", root=str(folders("red_fox", "red fox"))))
    assert (report["sound"], report["findings"]) == (True, [])


def test_domains_bring_classes_together(folders: Folders) -> None:
    folders("red_fox", "dog", below="set/photo")
    root = folders("red fox", "dog", below="set/sketch").parent
    _, (warning,) = told(DataSpec("domains", root=str(root)))
    assert "'red fox' (1: red fox, 2: red_fox)" in warning


@pytest.fixture
def cranes(tmp_path: Path, picture: MakeImage) -> DataSpec:
    """A list of CoOp with one name under two labels."""
    root = tmp_path / "food-101"
    listed = {part: [[f"{k}/{part}.jpg", k, name] for k, name in enumerate(("crane", "dog", "crane"))]
              for part in ("train", "test")}  # fmt: skip
    for part in listed.values():
        for path, *_ in part:
            picture(root / "images" / path)
    (root / "split_zhou_Food101.json").write_text(json.dumps({**listed, "val": []}))
    return DataSpec("food101", root=str(tmp_path))


@pytest.fixture
def imagenet(tmp_path: Path, picture: MakeImage) -> DataSpec:
    """Three classes of ImageNet, two of one name."""
    for identifier in ("n02012849", "n02110341", "n03126707"):
        for part in ("train", "val"):
            picture(tmp_path / "imagenet" / "images" / part / identifier / f"{part}.JPEG")
    (tmp_path / "imagenet" / "classnames.txt").write_text("n02012849 crane\nn02110341 dalmatian\nn03126707 crane\n")
    return DataSpec("imagenet", root=str(tmp_path))


def test_a_name_under_two_labels_of_a_list(cranes: DataSpec, imagenet: DataSpec) -> None:
    assert "'crane' (0: crane, 2: crane)" in told(cranes)[1][0]
    assert "'crane' (0: n02012849, 2: n03126707)" in told(imagenet)[1][0]


@pytest.fixture
def foxes(folders: Folders) -> DataSpec:
    return DataSpec("folder", root=str(folders("10", "red fox", "red_fox", "St. Bernard")))


NAMED = {
    "folder": ("foxes", {"red_fox": "fox, red"}, ("10", "St. Bernard", "red fox", "fox, red")),
    "folder_with_a_dot": ("foxes", {"St. Bernard": "saint", "red fox": "fox"}, ("10", "saint", "fox", "red fox")),
    "label": ("foxes", {"3": "fox"}, ("10", "St. Bernard", "red fox", "fox")),
    "a_name_before_a_label": ("foxes", {"10": "ten", "2": "fox"}, ("ten", "St. Bernard", "fox", "red fox")),
    "blanks_and_underscores": ("foxes", {"red_fox": " arctic_fox\n"}, ("10", "St. Bernard", "red fox", "arctic fox")),
    "swapped": ("foxes", {"10": "red fox", "red fox": "10", "3": "x"}, ("red fox", "St. Bernard", "10", "x")),
    "identifier": ("imagenet", {"n03126707": "crane machine"}, ("crane", "dalmatian", "crane machine")),
    "unique_name": ("imagenet", {"dalmatian": "spotted dog", "2": "crane machine"},
                    ("crane", "spotted dog", "crane machine")),
    "label_of_a_list": ("cranes", {"0": "crane bird"}, ("crane bird", "dog", "crane")),
    "name_of_a_list": ("cranes", {"dog": "hound", "2": "crane machine"}, ("crane", "hound", "crane machine")),
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMED)
def test_classes_are_named_by_their_own_name_or_label(kind: str, request: pytest.FixtureRequest) -> None:
    which, names, expected = NAMED[kind]
    data, warned = told(replace(request.getfixturevalue(which), names=names))
    assert (data.classes, warned) == (expected, [])


REFUSED = {
    "unknown": ("foxes", {"red_fix": "x"}, r"no class of folder 'red_fix'\. Did you mean 'red_fox'"),
    "label_too_high": ("foxes", {"4": "x"}, "no class of folder '4'"),
    "negative_label": ("foxes", {"-1": "x"}, "no class of folder '-1'"),
    "several": (
        "cranes",
        {"crane": "x"},
        r"data\.names\.crane is the name of 2 classes of food101\. .* its label: 0 or 2\.",
    ),
    "several_identifiers": ("imagenet", {"crane": "x"}, "its label: 0 or 2"),
    "twice": ("foxes", {"10": "x", "0": "y"}, "'10' and '0', both for class 0"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_names_of_no_class_or_of_several_are_refused(kind: str, request: pytest.FixtureRequest) -> None:
    which, names, says = REFUSED[kind]
    with pytest.raises(ConfigError, match=says) as caught:
        load(replace(request.getfixturevalue(which), names=names))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", [{"red_fox": "St. Bernard", "2": "x"}, {"10": "ST._bernard", "3": "x"}])
def test_a_name_that_another_class_has_is_warned_of(foxes: DataSpec, names: dict[str, str]) -> None:
    _, (warning,) = told(replace(foxes, names=names))
    assert "bernard' (" in warning.lower()


def test_names_are_part_of_what_a_cell_a_data_set_and_a_split_are(cranes: DataSpec) -> None:
    plain, named = compose_run(["data=food101"]), compose_run(["data=food101", "data.names={2: crane machine}"])
    assert named.data.names == {"2": "crane machine"}
    assert identity(plain) != identity(named)
    spec = replace(cranes, names={"2": "crane machine"}, shots=1)
    (before, _), (after, _) = told(cranes), told(spec)
    assert before.fingerprint != after.fingerprint
    drawn = [split(data, spec, PartitionSpec("iid", n_clients=1), 1).hash for data in (before, after)]
    assert drawn[0] != drawn[1]
    assert cross_data(spec, "shapes").names == {}


@pytest.mark.parametrize("name", [" ", ""])
def test_a_name_has_letters(name: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.names\.dog is missing"):
        compose_run([f"data.names={{dog: '{name}'}}"])


LATIN = os.fsdecode(b"caf\xe9")
PLACES = {
    "class": ("folder", f"set/{LATIN}/0.png", r"'caf\\udce9'"),
    "domain": ("domains", f"set/{LATIN}/cup/0.png", r"'caf\\udce9'"),
    "class_of_a_domain": ("domains", f"set/photo/{LATIN}/0.png", r"'caf\\udce9'"),
    "class_of_both_sides": ("folder", f"set/train/{LATIN}/0.png", r"'caf\\udce9'"),
    "image": ("folder", f"set/cup/{LATIN}.png", r"'cup/caf\\udce9\.png'"),
    "folder_in_a_class": ("folder", f"set/cup/{LATIN}/0.png", r"'cup/caf\\udce9/0\.png'"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_name_that_is_not_utf_8_is_refused_by_name(place: str, tmp_path: Path, picture: MakeImage) -> None:
    name, path, says = PLACES[place]
    plain = picture(tmp_path / "plain.png")
    first = tmp_path / path
    for k in range(3):
        other = first.with_name(f"{k}.png") if first.stem != LATIN else first.with_name(f"{LATIN}{k or ''}.png")
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(plain.read_bytes())
    if "train" in path:
        (tmp_path / "set" / "test" / LATIN).mkdir(parents=True)
    with pytest.raises(EnvironmentProblem, match=rf"must be UTF-8, but {name} has {says}\. Rename it\.$"):
        check(DataSpec(name, root=str(tmp_path / "set")))


@pytest.mark.parametrize("code", [0xD800, 0xDCE9])
def test_half_a_sign_in_a_list_is_refused(cranes: DataSpec, code: int) -> None:
    path = Path(str(cranes.root)) / "food-101" / "split_zhou_Food101.json"
    path.write_text(path.read_text().replace('"dog"', json.dumps(f"dog{chr(code)}")))
    with pytest.raises(EnvironmentProblem, match=r"food101 has 'dog\\ud"):
        load(cranes)


@pytest.mark.parametrize("name", ["Füchse", "猫", "👍", "naïve"])
def test_names_of_other_scripts_are_read(name: str, folders: Folders) -> None:
    assert set(load(DataSpec("folder", root=str(folders(name, "dog")))).classes) == {name, "dog"}


@pytest.mark.parametrize("template", ["a photo", "a {photo} of {}", "{} {}", "{0}", "{", "}", "{:>9}", "{{}}"])
def test_a_template_of_another_package_is_checked(
    template: str, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load(DataSpec("folder", root=str(folders("cat", "dog"))))
    theirs = replace(catalogue.SOURCES["folder"], loader=lambda _: replace(data, template=template))
    monkeypatch.setitem(catalogue.SOURCES, "theirs", theirs)
    with pytest.raises(ConfigError, match=r"^The template of folder must be a string with \{\} once") as caught:
        load(DataSpec("theirs"))
    assert repr(template) in str(caught.value)
