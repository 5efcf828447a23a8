"""Folders on any filesystem that pyarrow knows, whose files appear whole."""

from __future__ import annotations

import contextlib
import os

from pyarrow import fs

from acker._engine import storage
from acker._files.object_stores import OBJECT_STORES
from acker._files.paths import make_absolute
from acker.errors import ArgumentTypeError
from acker.spark.hadoop import place_of


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
        place = place_of(make_absolute(path))
        self._filesystem, self._root = place.filesystem, place.path.rstrip("/")
        is_local = isinstance(self._filesystem, fs.LocalFileSystem)
        # For errors and logs: a URI may hold a password.
        self.path = self._root if is_local else f"{place.text.partition(':')[0]}://{self._root}"

    def make(self) -> None:
        """Make the folder, if it is missing, also in an object store: Spark reads a stream from no other one."""
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
        make_directory(self._filesystem, self._root)
        path = f"{self._root}/{name}"
        if isinstance(self._filesystem, fs.LocalFileSystem):
            storage.write(path, [data], temporary=f".{name}-")
            return
        write_elsewhere(self._filesystem, path, data)

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


def make_directory(filesystem: fs.FileSystem, path: str) -> None:
    """Make a directory for files, if it is missing; an object store needs none."""
    if filesystem.type_name not in OBJECT_STORES:
        filesystem.create_dir(path, recursive=True)


def write_elsewhere(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file on a filesystem that is not local; readers see it whole, as far as the filesystem can."""
    # In an object store a file appears when it is closed; a move would be a copy.
    is_store = filesystem.type_name in OBJECT_STORES
    folder, _, name = path.rpartition("/")
    # Spark ignores names that begin with a dot.
    target = path if is_store else f"{folder}/.{name}.tmp"
    with filesystem.open_output_stream(target) as stream:
        stream.write(data)
    if not is_store:
        filesystem.move(target, path)
