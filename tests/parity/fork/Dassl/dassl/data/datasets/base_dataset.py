"""A list of images as Dassl's forks have it."""

from dataclasses import dataclass
from typing import Any


@dataclass
class Datum:
    impath: str = ""
    label: int = 0
    domain: int = 0
    classname: str = ""


class DatasetBase:
    def __init__(
        self,
        train_x: list[Datum],
        federated_train_x: Any = None,
        train_u: Any = None,
        val: Any = None,
        federated_test_x: Any = None,
        test: Any = None,
    ) -> None:
        self.train_x, self.federated_train_x, self.federated_test_x = train_x, federated_train_x, federated_test_x
        self.test = test
        self.lab2cname = {item.label: item.classname for item in train_x}
        self.classnames = [self.lab2cname[label] for label in sorted(self.lab2cname)]
