"""Names of classes in prompts: names that the user gives, and classes that share a prompt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fpl_tune.core.errors import ConfigError, unknown
from fpl_tune.core.formatting import counted
from fpl_tune.data.files import cleaned
from fpl_tune.data.pool import Dataset

_SHOWN = 5  # prompts of several classes, or labels of one name


def renamed(dataset: Dataset, names: Mapping[str, str]) -> tuple[str, ...]:
    """The class names of a data set after renaming by `DataSpec.names`.

    Raises:
        ConfigError: a key belongs to no class or to several, or two keys to the same class.
    """
    classes, given = list(dataset.classes), dict[int, str]()
    for key, name in names.items():
        label = _label(dataset, key)
        if label in given:
            raise ConfigError(f"data.names has {given[label]!r} and {key!r}, both for class {label}. Remove one.")
        given[label], classes[label] = key, name
    return cleaned(classes)


def _label(dataset: Dataset, key: str) -> int:
    """The label of a class, given its own name, its name in prompts, or its number."""
    spellings = (dataset.own_names, dataset.classes, [*map(str, range(len(dataset.classes)))])
    for names in spellings:
        labels = [label for label, name in enumerate(names) if name == key]
        if len(labels) > 1:
            raise ConfigError(
                f"data.names.{key} is the name of {len(labels)} classes of {dataset.name}. Give one by its label: "
                f"{' or '.join(map(str, labels[:_SHOWN]))}."
            )
        if labels:
            return labels[0]
    raise unknown(f"class of {dataset.name}", key, dict.fromkeys((*dataset.own_names, *dataset.classes)))


def sharing(dataset: Dataset, classes: Sequence[str]) -> str:
    """A warning about classes that share a prompt; "" if there are none.

    CLIP's tokenizer ignores case and the number of blanks.
    """
    labels: dict[str, list[int]] = defaultdict(list)
    for label, name in enumerate(classes):
        labels[" ".join(name.casefold().split())].append(label)
    alike = [(classes[same[0]], same) for same in labels.values() if len(same) > 1]
    if not alike:
        return ""
    own = dataset.own_names or dataset.classes
    cases = [f"{name!r} ({', '.join(f'{k}: {own[k]}' for k in same)})" for name, same in alike[:_SHOWN]]
    more = f" and {len(alike) - _SHOWN} more" if len(alike) > _SHOWN else ""
    return (
        f"{counted(sum(len(same) for _, same in alike), 'class', 'classes')} of {dataset.name} share prompts, and no "
        f"method can tell them apart: {'; '.join(cases)}{more}. Name them, as in data.names={{{alike[0][1][1]}: NAME}}."
    )
