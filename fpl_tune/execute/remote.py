"""Remote storage of checkpoints: any file system of fsspec (file, s3, gs, ...), for nodes that share no folder."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from fpl_tune.errors import ConfigError, EnvironmentProblem


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
            self.fs, self.root = fsspec.core.url_to_fs(url)
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
            self._remove(f"{there}/{path.name}")
            del self._sent[path]
        self._sent.update({path: files[path] for path in fresh})

    def pull(self, name: str, folder: Path) -> None:
        """Downloads a folder, if it exists."""
        there = self.at(name)
        self.fs.invalidate_cache()
        if not self.fs.isdir(there):
            return
        folder.mkdir(parents=True, exist_ok=True)
        for path in self.fs.ls(there, detail=False):
            target = folder / path.rsplit("/", 1)[-1]
            self.fs.get_file(path, str(target))
            self._sent[target] = (target.stat().st_size, target.stat().st_mtime_ns)

    def drop(self, name: str) -> None:
        """Removes a folder, if it exists."""
        self._remove(self.at(name))

    def write(self, name: str, text: str) -> None:
        self.fs.makedirs(self.root, exist_ok=True)
        self.fs.pipe_file(self.at(name), text.encode())

    def read(self, name: str) -> str:
        """Reads a text file; raises `FileNotFoundError` if it does not exist."""
        self.fs.invalidate_cache()
        return self.fs.cat_file(self.at(name)).decode()

    def holds(self, name: str) -> bool:
        self.fs.invalidate_cache()
        return bool(self.fs.exists(self.at(name)))

    def at(self, name: str) -> str:
        """The path of a name in the file system."""
        return f"{self.root.rstrip('/')}/{name}"

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.fs.rm(path, recursive=True)
