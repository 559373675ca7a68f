"""Lists folders of images, and records which files are left out."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from PIL import Image

from fpl_tune.core.errors import EnvironmentProblem
from fpl_tune.core.formatting import counted, some

_FORMATS = frozenset({"AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "QOI", "TGA", "TIFF", "WEBP"})
"""Formats of Pillow for pictures, without documents, videos, icons and arrays of numbers."""
_MADE = frozenset(
    {"@eadir", "@tmp", "#recycle", "#snapshot", "$recycle.bin", "system volume information", "lost+found"}
    | {"thumbs", "thumbnails", "thumbs.db", "ehthumbs.db", "desktop.ini"}
)
"""Names of files and folders that file servers, file systems and image viewers create."""
_OTHER, _BY_NAME = "of other kinds", "hidden by name"


@cache
def suffixes() -> tuple[str, ...]:
    """The suffixes of images, in lower case: those of `_FORMATS` that the installed Pillow reads."""
    return tuple(suffix for suffix, kind in Image.registered_extensions().items() if kind in _FORMATS)


def hidden(name: str) -> bool:
    """True if a file or folder is left out because of its name.

    Such names begin with "." or "__" (`.ipynb_checkpoints`, `.thumbnails`, `__MACOSX` and its `._x.jpg`), or are
    created by file servers and viewers (`@eaDir`, `Thumbs`, in upper or lower case).
    """
    return name.startswith((".", "__")) or name.casefold() in _MADE


@dataclass
class FolderImages:
    """The images below a folder."""

    images: list[str] = field(default_factory=list)
    """Sorted paths below the listing's root."""
    inner: set[str] = field(default_factory=set)
    """Names of the folders in it that contain images, at any depth; "" if it directly contains some."""

    @property
    def deeper(self) -> bool:
        """True if all images are in inner folders, of which there is more than one."""
        return "" not in self.inner and len(self.inner) > 1


@dataclass
class Listing:
    """The folders and images below a root, with notes on what is left out."""

    root: Path
    _left: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    """Paths below the root by kind: a noun, and the words that follow it."""

    def folders(self, folder: Path) -> dict[str, Path]:
        """The visible folders in a folder, including links to folders, sorted by their names in Unicode's NFC.

        Raises:
            EnvironmentProblem: the folder does not exist or cannot be read, a link in it is broken, or two names
                differ only in their Unicode form.
        """
        if not folder.is_dir():
            raise EnvironmentProblem(f"There is no folder {folder}. Complete the download.")
        by_name: dict[str, Path] = {}
        for entry in self._visible(str(folder)):
            if _is_folder(entry):
                name = unicodedata.normalize("NFC", entry.name)
                if name in by_name:
                    twins = f"{by_name[name].name!a} and {entry.name!a}"
                    raise EnvironmentProblem(f"{folder} has {name!r} in two Unicode forms, {twins}. Merge the two.")
                by_name[name] = folder / entry.name
            elif _is_image(entry):
                self._leave(entry, "image", "beside folders")
        return dict(sorted(by_name.items()))

    def images(self, folders: Sequence[Path]) -> list[FolderImages]:
        """The visible images below each of the folders, which may be links. Links to folders inside are not followed.

        Raises:
            EnvironmentProblem: a folder cannot be read, a link is broken, or one folder is or contains another one
                because of a link.
        """
        reals = [Path(os.path.realpath(folder)) for folder in folders]
        at = dict(zip(reals, folders, strict=True))
        for folder, real in zip(folders, reals, strict=True):
            for parent in (real, *real.parents):
                if (other := at.get(parent, folder)) != folder:
                    outer, inner = self._below(other), self._below(folder)
                    raise EnvironmentProblem(
                        f"{self.root}: by a link, {outer} is or contains {inner}. Remove one of them."
                    )
        return [self._images(folder) for folder in folders]

    def _images(self, top: Path) -> FolderImages:
        result, pending = FolderImages(), [(str(top), "")]
        while pending:
            folder, inner = pending.pop()
            for entry in self._visible(folder):
                if not _is_folder(entry):
                    if _is_image(entry):
                        result.images.append(self._below(entry.path))
                        result.inner.add(inner)
                    else:
                        self._leave(entry, "file", _OTHER)
                elif entry.is_symlink():
                    self._leave(entry, "link", "to folders")
                else:
                    pending.append((entry.path, inner or entry.name))
        result.images.sort()
        return result

    def notes(self) -> tuple[str, ...]:
        """One sentence for each kind of file that was left out so far, with the number of files and the first paths."""
        notes = []
        for (noun, which), paths in sorted(self._left.items()):
            if which == _OTHER:
                kinds = Counter(os.path.splitext(path)[1].lower() or "without a suffix" for path in paths)
                which += f" ({some([f'{n:,} {kind}' for kind, n in kinds.most_common()])})"
            notes.append(f"left out {counted(len(paths), noun)} {which}: {some(sorted(paths))}")
        return tuple(notes)

    def _visible(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                listed = list(entries)
        except OSError as error:
            raise EnvironmentProblem(f"Cannot read the folder {folder}: {error.strerror}.") from None
        for entry in listed:
            if not hidden(entry.name):
                yield entry
            elif entry.is_dir(follow_symlinks=False):
                self._leave(entry, "folder", _BY_NAME)
            elif _is_image(entry):
                self._leave(entry, "image", _BY_NAME)

    def _leave(self, entry: os.DirEntry[str], noun: str, which: str) -> None:
        self._left[noun, which].append(self._below(entry.path))

    def _below(self, path: str | Path) -> str:
        """The path below the root."""
        return str(path).removeprefix(os.path.join(self.root, ""))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    if not entry.is_symlink():
        return entry.is_dir()
    if not os.path.exists(entry.path) and not _is_image(entry):  # a missing image is named when it is read
        raise EnvironmentProblem(f"The link {entry.path} is broken. Fix or remove it.")
    return os.path.isdir(entry.path)


def _is_image(entry: os.DirEntry[str]) -> bool:
    """True if a file's suffix is that of an image. Pipes and devices are not images, since they may never end."""
    return entry.name.lower().endswith(suffixes()) and (entry.is_file() or entry.is_symlink())
