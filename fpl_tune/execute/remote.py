"""Remote storage of checkpoints: any file system of fsspec (file, s3, gs, ...), for nodes that share no folder."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from fpl_tune.core.errors import ConfigError, EnvironmentProblem
from fpl_tune.core.files import refused

PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Seconds before each further attempt of what failed at a URL."""
P = ParamSpec("P")
T = TypeVar("T")


class StorageError(EnvironmentProblem, OSError):
    """A copy at a URL cannot be written, read or removed, whichever exception the file system's library raised."""

    def __str__(self) -> str:
        return (
            f"execution.checkpoints={self.filename} cannot be used ({self.strerror}). Check the permissions; the "
            "same command continues."
        )


def _tried(call: Callable[Concatenate[RemoteStorage, P], T]) -> Callable[Concatenate[RemoteStorage, P], T]:
    """A method that is called again after pauses: most errors of a network pass."""

    @wraps(call)
    def tried(storage: RemoteStorage, *args: P.args, **kwargs: P.kwargs) -> T:
        pauses = iter(PAUSES)
        while True:
            try:
                return call(storage, *args, **kwargs)
            except Exception as problem:  # such as botocore's, which have no base in common with others
                if refused(problem):  # the disk of this machine
                    raise
                pause = next(pauses, None)
                if pause is None or isinstance(problem, PermissionError | FileNotFoundError):
                    raise storage.failure(problem) from problem
                time.sleep(pause)

    return tried


class RemoteStorage:
    """Folders at a URL, each a copy of a local one.

    Args:
        url: the root of the folders, e.g. s3://bucket/studies.

    Raises:
        ConfigError: fsspec has no file system of that kind.
        EnvironmentProblem: the package for it is missing, or it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        import fsspec.core

        self.url = url
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url, use_listings_cache=False)  # other nodes write, too
        except ImportError as problem:
            raise EnvironmentProblem(
                f"execution.checkpoints={url} needs a package that is missing: {problem}"
            ) from None
        except ValueError as problem:
            raise ConfigError(
                f"execution.checkpoints must be a URL that fsspec knows, but is {url}: {problem}."
            ) from None
        except Exception as problem:  # some look for credentials at once
            raise self.failure(problem) from problem
        self._known: set[str] = set()  # names of the files that were pushed

    @_tried
    def push(self, folder: Path, name: str) -> None:
        """Uploads the files of a folder that are new since it was pushed, and removes what was deleted.

        A checkpoint that a kill cut short fails its digest, and the one before it is used.

        Raises:
            StorageError: it cannot be written.
        """
        there, files = self.at(name), {path.name for path in folder.iterdir() if path.is_file()}
        self.fs.makedirs(there, exist_ok=True)
        for file in files - self._known:
            self.fs.put_file(str(folder / file), f"{there}/{file}")
        for file in self._known - files:
            with suppress(FileNotFoundError):
                self.fs.rm_file(f"{there}/{file}")
        self._known = files

    @_tried
    def pull(self, name: str, folder: Path) -> None:
        """Downloads a folder, if it exists.

        Raises:
            StorageError: it cannot be read.
        """
        there = self.at(name)
        if self.fs.isdir(there):
            folder.mkdir(parents=True, exist_ok=True)
            for path in self.fs.ls(there, detail=False):
                self.fs.get_file(path, str(folder / path.rsplit("/", 1)[-1]))

    @_tried
    def drop(self, name: str) -> None:
        """Removes a folder or a file, if it exists.

        Raises:
            StorageError: it cannot be removed.
        """
        with suppress(FileNotFoundError):
            self.fs.rm(self.at(name), recursive=True)

    @_tried
    def write(self, name: str, text: str) -> None:
        """Writes a text.

        Raises:
            StorageError: it cannot be written.
        """
        path = self.at(name)
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, text.encode())

    @_tried
    def holds(self, name: str) -> bool:
        """True if the file or folder exists.

        Raises:
            StorageError: it does not answer.
        """
        return bool(self.fs.exists(self.at(name)))

    def failure(self, problem: Exception) -> StorageError:
        """The error of a call here, whichever exception it raised."""
        said = " ".join(f"{type(problem).__name__}: {problem}".split())
        return StorageError(errno.EIO, said[:300], self.url)

    def at(self, name: str) -> str:
        """The path of a name in the file system."""
        return f"{self.root.rstrip('/')}/{name}"
