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
"""Seconds before each retry of a call that failed at a URL."""
P = ParamSpec("P")
T = TypeVar("T")


class StorageError(EnvironmentProblem, OSError):
    """A copy at a URL cannot be written, read or removed, whichever exception the file system's library raised."""

    def __str__(self) -> str:
        return (
            f"execution.checkpoints={self.filename} cannot be used ({self.strerror}). Check the permissions; the "
            "same command continues."
        )


def _with_retries(call: Callable[Concatenate[RemoteStorage, P], T]) -> Callable[Concatenate[RemoteStorage, P], T]:
    """Retries a method after pauses: most network errors are temporary."""

    @wraps(call)
    def retrying(storage: RemoteStorage, *args: P.args, **kwargs: P.kwargs) -> T:
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

    return retrying


class RemoteStorage:
    """Folders at a URL, each a copy of a local one.

    Args:
        url: the root of the folders, e.g. s3://bucket/studies.

    Raises:
        ConfigError: fsspec has no file system of that kind, or would take the URL as a pattern.
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
        except Exception as problem:  # some file systems look for credentials here
            raise self.failure(problem) from problem
        if {*"*?["} & {*str(self.root)} and "file" not in self.fs.protocol:
            # fsspec takes them as a pattern when it removes, and would remove what others have.
            raise ConfigError(
                f"execution.checkpoints must not have any of *, ? and [, but is {url}. Name another folder."
            )
        self._pushed: set[str] = set()  # names of the files that were pushed

    @_with_retries
    def push(self, folder: Path, name: str) -> None:
        """Uploads the files of a folder that are new since the last push, and removes deleted ones.

        A checkpoint that was cut short by a kill fails its digest, and the one before it is used.

        Raises:
            StorageError: it cannot be written.
        """
        target, files = self.at(name), {path.name for path in folder.iterdir() if path.is_file()}
        self.fs.makedirs(target, exist_ok=True)
        for file in files - self._pushed:
            self.fs.put_file(str(folder / file), f"{target}/{file}")
        for file in self._pushed - files:
            with suppress(FileNotFoundError):
                self.fs.rm_file(f"{target}/{file}")
        self._pushed = files

    @_with_retries
    def pull(self, name: str, folder: Path) -> None:
        """Downloads a folder, if it exists.

        Raises:
            StorageError: it cannot be read.
        """
        source = self.at(name)
        if self.fs.isdir(source):
            folder.mkdir(parents=True, exist_ok=True)
            for path in self.fs.ls(source, detail=False):
                self.fs.get_file(path, str(folder / path.rsplit("/", 1)[-1]))

    @_with_retries
    def drop(self, name: str) -> None:
        """Removes a folder or a file, if it exists.

        Raises:
            StorageError: it cannot be removed.
        """
        with suppress(FileNotFoundError):
            self.fs.rm(self.at(name), recursive=True)

    @_with_retries
    def write(self, name: str, text: str) -> None:
        """Writes a text file.

        Raises:
            StorageError: it cannot be written.
        """
        path = self.at(name)
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, text.encode())

    @_with_retries
    def holds(self, name: str) -> bool:
        """True if the file or folder exists.

        Raises:
            StorageError: it does not answer.
        """
        return bool(self.fs.exists(self.at(name)))

    def failure(self, problem: Exception) -> StorageError:
        """The `StorageError` for any exception of a call."""
        reason = " ".join(f"{type(problem).__name__}: {problem}".split())
        return StorageError(errno.EIO, reason[:300], self.url)

    def at(self, name: str) -> str:
        """The path of a name in the file system."""
        return f"{self.root.rstrip('/')}/{name}"
