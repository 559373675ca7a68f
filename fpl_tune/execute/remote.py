"""Remote storage of checkpoints: any file system of fsspec (file, s3, gs, ...), for nodes that share no folder."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from fpl_tune.core.errors import ConfigError, EnvironmentProblem


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
        self._sent: dict[Path, tuple[int, int]] = {}

    def push(self, folder: Path, name: str) -> None:
        """Uploads the new and changed files of a folder, and removes those that were deleted.

        Raises:
            OSError: it cannot be written.
        """
        files = {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir() if path.is_file()}
        there = self.at(name)
        self.fs.makedirs(there, exist_ok=True)
        fresh = [path for path, mark in files.items() if self._sent.get(path) != mark]
        with self.fs.transaction:  # either all of them appear, complete, or none does
            for path in fresh:
                with path.open("rb") as source, self.fs.open(f"{there}/{path.name}", "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        for path in [old for old in self._sent if old.parent == folder and old not in files]:
            with suppress(FileNotFoundError):
                self.fs.rm(f"{there}/{path.name}")
            del self._sent[path]
        self._sent.update({path: files[path] for path in fresh})

    def pull(self, name: str, folder: Path) -> None:
        """Downloads a folder, if it exists."""
        there = self.at(name)
        if not self.fs.isdir(there):
            return
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.fs.ls(there, detail=False):
            target = folder / path.rsplit("/", 1)[-1]
            self.fs.get_file(path, str(target))
            self._sent[target] = (target.stat().st_size, target.stat().st_mtime_ns)

    def drop(self, name: str) -> None:
        """Removes a folder or a file, if it exists.

        Raises:
            EnvironmentProblem: the storage cannot be used.
        """
        try:
            self.fs.rm(self.at(name), recursive=True)
        except FileNotFoundError:
            pass
        except Exception as problem:
            why = " ".join(str(problem).split())[:160]
            raise EnvironmentProblem(
                f"execution.checkpoints={self.url} cannot be used ({why}). Name another one."
            ) from None

    def write(self, name: str, text: str) -> None:
        path = self.at(name)
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        self.fs.pipe_file(path, text.encode())

    def read(self, name: str) -> str:
        """Reads a text file; raises `FileNotFoundError` if it does not exist."""
        return self.fs.cat_file(self.at(name)).decode()

    def holds(self, name: str) -> bool:
        return bool(self.fs.exists(self.at(name)))

    def at(self, name: str) -> str:
        """The path of a name in the file system."""
        return f"{self.root.rstrip('/')}/{name}"
