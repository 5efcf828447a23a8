"""Folders on any filesystem that pyarrow knows, whose files appear whole."""

from __future__ import annotations

import contextlib
import os

from pyarrow import fs

from acker._engine import storage
from acker._files.paths import locate, make_absolute
from acker.errors import ArgumentTypeError


class Folder:
    """A folder of small files, each of which is written completely or not at all.

    Parameters
    ----------
    name : str
        Its meaning, for errors.
    path : path
        Local, or a URI of a filesystem that pyarrow knows. It is made when it is first needed.
    """

    def __init__(self, name: str, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentTypeError(f"{name}: expected the path of a folder, got {type(path).__name__}")
        # Absolute, since another process may have another working directory.
        self._filesystem, root = locate(make_absolute(path))
        self._root = root.rstrip("/")
        is_local = isinstance(self._filesystem, fs.LocalFileSystem)
        # For errors and logs: a URI may hold a password.
        self.path = self._root if is_local else f"{self._filesystem.type_name}://{self._root}"

    def make(self) -> None:
        """Make the folder, if it is missing."""
        self._filesystem.create_dir(self._root, recursive=True)

    def names(self) -> frozenset[str]:
        """Return the names of the files in it."""
        found = self._filesystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True))
        return frozenset(entry.base_name for entry in found if entry.is_file)

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name."""
        return bool(self._filesystem.get_file_info(f"{self._root}/{name}").is_file)

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        with self._filesystem.open_input_stream(f"{self._root}/{name}") as source:
            return bytes(source.read())

    def write(self, name: str, data: bytes) -> None:
        """Write a file, or replace it: readers see the old content or the new one, even if this process dies.

        On a local disk the file has reached the disk afterwards, and only its owner may read it.
        """
        self.make()
        path = f"{self._root}/{name}"
        if isinstance(self._filesystem, fs.LocalFileSystem):
            storage.write(path, [data], temporary=f".{name}-")
            return
        # Spark ignores names that begin with a dot.
        temporary = f"{self._root}/.{name}.tmp"
        with self._filesystem.open_output_stream(temporary) as target:
            target.write(data)
        self._filesystem.move(temporary, path)

    def remove_unfinished(self, *names: str) -> None:
        """Remove what killed processes have begun to write of files whose names begin so; nobody may write them now."""
        begins = tuple(f".{name}" for name in names)
        for each in self.names():
            if each.startswith(begins) and each.endswith(".tmp"):
                with contextlib.suppress(FileNotFoundError):
                    self.remove(each)

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._filesystem.delete_file(f"{self._root}/{name}")
