"""Files that paths name: single files, directories and patterns, on any filesystem that pyarrow knows.

In a directory of a file sink of Structured Streaming only the files in the sink's log count.
"""

from __future__ import annotations

import fnmatch
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from acker._engine.user_frames import user_stacklevel
from acker._files.object_stores import AZURE_SCHEMES, OBJECT_STORES, S3_SCHEMES
from acker._files.sink_log import LOG, read_log
from acker.errors import ArgumentTypeError, ArgumentValueError

# Opens a URI, or leaves it to pyarrow.
Opener = Callable[[str], "fs.FileSystem | None"]

_MAGIC: Final = re.compile(r"[*?\[]")
# Hadoop's names of the filesystem that pyarrow calls s3.
_HADOOP_S3: Final = re.compile(r"^s3[an]:")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
# Characters that pyarrow accepts unquoted in a URI, without those of patterns.
_URI_CHARACTERS: Final = "%/:@!$&'()+,;=~"
# By the scheme of a URI, what lets pyarrow open it.
_MENDS: Final = {
    "hdfs": "make a Spark session first, or install Hadoop's libhdfs with JAVA_HOME and CLASSPATH"
    " (`hadoop classpath --glob`)",
}
_OTHER_MEND: Final = "use s3a, abfss, gs or hdfs, or a path where the storage is mounted"


def list_files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    filesystem: fs.FileSystem | None = None,
    logs: bool = True,
    open_uri: Opener | None = None,
) -> list[tuple[fs.FileSystem, str]]:
    """Return the files that `paths` name, in order, each once, also where symbolic links give it several names.

    Parameters
    ----------
    paths : path or paths
    filesystem : pyarrow.fs.FileSystem, optional
        Where the paths are. By default that of each URI, and for other paths this machine.
    logs : bool
        Follow the logs of file sinks: in their directories only committed files count.
    open_uri : callable, optional
        See `locate`.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        No path; a path that names no file; a damaged log, or one with a file that is missing.

    Warns
    -----
    UserWarning
        A file that `paths` name is not in the log of its directory.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not isinstance(paths, Iterable):
        raise ArgumentTypeError(f"paths: expected a path or several, got {type(paths).__name__}")
    if filesystem is not None and not isinstance(filesystem, fs.FileSystem):
        raise ArgumentTypeError(
            f"filesystem: expected a filesystem of pyarrow, got {type(filesystem).__name__}; pyarrow wraps one of"
            " fsspec as PyFileSystem(FSSpecHandler(it))"
        )
    # On a whole filesystem symbolic links can be followed, and its paths are those in the logs of sinks.
    given, root = _unwrap(filesystem)
    found: dict[tuple[int, str], tuple[fs.FileSystem, str]] = {}
    asked = 0
    seen: list[tuple[fs.FileSystem, Directories]] = []
    for path in paths:
        if not isinstance(path, (str, os.PathLike)):
            raise ArgumentTypeError(f"paths: expected a path or several, got {type(path).__name__} among them")
        asked += 1
        text = os.fspath(path)
        located, base, pattern = resolve(text if given is filesystem else root + text.lstrip("/"), given, open_uri)
        number = next((i for i, (known, _) in enumerate(seen) if known.equals(located)), len(seen))
        if number == len(seen):
            seen.append((located, Directories(located, logs=logs)))
        directories = seen[number][1]
        files = sorted(directories.expand(base, pattern))
        if not files:
            raise ArgumentValueError(f"paths: {text!r} names no file{directories.hint(base, pattern)}")
        is_local = isinstance(located, fs.LocalFileSystem)
        for file in files:
            found.setdefault((number, os.path.realpath(file) if is_local else file), (located, file))
    if not asked:
        raise ArgumentValueError("paths: expected at least one path")
    return list(found.values())


def _unwrap(filesystem: fs.FileSystem | None) -> tuple[fs.FileSystem | None, str]:
    """Return the filesystem that a `SubTreeFileSystem` is a part of, and the path of that part."""
    root = ""
    while isinstance(filesystem, fs.SubTreeFileSystem):
        root = filesystem.base_path + root
        filesystem = filesystem.base_fs
    return filesystem, root


def resolve(
    path: str, given: fs.FileSystem | None = None, open_uri: Opener | None = None
) -> tuple[fs.FileSystem, str, list[str]]:
    """Return a filesystem, a path on it, and the pattern's segments below that path.

    A path that exists as written is no pattern, whatever characters it has.

    Parameters
    ----------
    path : str
    given : pyarrow.fs.FileSystem, optional
        Where the path is, if the path itself does not say it.
    open_uri : callable, optional
        See `locate`.
    """
    if given is not None:
        if path and given.type_name not in OBJECT_STORES:
            path = str(PurePosixPath(path))  # a//b and a/./b are a/b, but in object stores they are other keys
        return _resolve_segments(path.split("/"), lambda first: (given, "/".join(first) or "/" * path.startswith("/")))
    segments = path.split("/") if is_uri(path) or os.sep == "/" else re.split(r"[\\/]", path)
    return _resolve_segments(segments, lambda first: _locate_segments(first, path, open_uri))


def _resolve_segments(
    segments: list[str], locate_first: Callable[[list[str]], tuple[fs.FileSystem, str]]
) -> tuple[fs.FileSystem, str, list[str]]:
    plain = 0
    while True:
        plain = next((i for i in range(plain, len(segments)) if _MAGIC.search(segments[i])), len(segments))
        if plain == len(segments):
            break
        filesystem, named = locate_first(segments[: plain + 1])
        if filesystem.get_file_info(named).type == fs.FileType.NotFound:
            break
        plain += 1
    return *locate_first(segments[:plain]), segments[plain:]


def _locate_segments(segments: list[str], path: str, open_uri: Opener | None) -> tuple[fs.FileSystem, str]:
    base = "/".join(segments)
    if is_uri(path):
        return locate(quote(base, safe=_URI_CHARACTERS), open_uri)
    # The workers may have another working directory.
    return locate(str(Path(base or ("/" if path.startswith("/") else ".")).absolute()))


def make_absolute(path: str | os.PathLike[str]) -> str:
    """Return a URI as it is, and a path of this machine as an absolute one."""
    text = os.fspath(path)
    return text if is_uri(text) else str(Path(text).absolute())


@dataclass(frozen=True, eq=False)
class Place:
    """A path with its filesystem, which workers that know no configuration of Hadoop get with it.

    Attributes
    ----------
    text : str
        As the user wrote it, for errors.
    filesystem : pyarrow.fs.FileSystem
    path : str
        On that filesystem.
    """

    text: str
    filesystem: fs.FileSystem
    path: str

    def __str__(self) -> str:
        return self.text

    def below(self, name: str) -> Place:
        """Return the place of a name in this directory."""
        return Place(f"{self.text}/{name}", self.filesystem, f"{self.path}/{name}")


def locate(path: str | Place, open_uri: Opener | None = None) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of an absolute path or a URI, and the path on it.

    Parameters
    ----------
    path : str or Place
    open_uri : callable, optional
        Opens URIs as a Spark session does. Without it pyarrow finds endpoints and credentials by itself.

    Raises
    ------
    ArgumentValueError
        pyarrow has no filesystem for the URI.
    """
    if isinstance(path, Place):
        return path.filesystem, path.path
    if not is_uri(path):
        return fs.LocalFileSystem(use_mmap=True), path
    store = open_uri(path) if open_uri is not None else None
    if store is not None:
        return store, path_in_store(path)
    scheme = path.partition(":")[0]
    try:
        filesystem, root = fs.FileSystem.from_uri(_HADOOP_S3.sub("s3:", path))
    except (OSError, ImportError, pa.ArrowInvalid) as error:
        if isinstance(error, OSError) and scheme not in _MENDS:  # of a network
            raise
        raise ArgumentValueError(
            f"{scheme}: pyarrow opens no filesystem for this URI; {_MENDS.get(scheme, _OTHER_MEND)}"
        ) from error
    return fs.LocalFileSystem(use_mmap=True) if isinstance(filesystem, fs.LocalFileSystem) else filesystem, root


def is_uri(path: str) -> bool:
    """Return whether a text is a URI, and no path of this machine."""
    return _URI.match(path) is not None


def quote_uri(text: str) -> str:
    """Return a URI of Hadoop's, in which nothing is escaped, as others write it."""
    scheme, _, rest = text.partition(":")
    return f"{scheme}:{quote(rest, safe='/:@[]')}"


def path_in_store(uri: str) -> str:
    """Return the path that a filesystem of `OBJECT_STORES` has for a URI."""
    parts = urlsplit(uri)
    netloc = parts.netloc.rpartition("@")[2] if parts.scheme in S3_SCHEMES else parts.netloc
    if parts.scheme in AZURE_SCHEMES:  # container@account
        netloc = netloc.partition("@")[0]
    return f"{netloc}{unquote(parts.path)}"


def is_hidden(name: str) -> bool:
    """Return whether Spark ignores files of this name; the column of a partition may begin with "_", as ``_day=1``."""
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


class Directories:
    """Searches directories of one filesystem, and follows the logs that it finds.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    logs : bool
        Whether to follow the logs.
    """

    def __init__(self, filesystem: fs.FileSystem, *, logs: bool = True) -> None:
        self._filesystem = filesystem
        self._follow = logs
        self._committed: dict[str, dict[str, None]] = {}  # by directory with a log
        self._governing: dict[str, str | None] = {}  # by directory, the outermost one with a log
        self._entered: set[tuple[str, ...]] = set()  # by one search: directories, each with a pattern below it

    def expand(self, base: str, pattern: list[str]) -> Iterator[str]:
        """Yield the files that a path and a pattern below it name."""
        self._entered.clear()
        if not pattern and self._filesystem.get_file_info(base).is_file:
            if not self._counts(base):
                warnings.warn(
                    f"paths: {base} is named, and so is read, but is not in {self._governed(base)}/{LOG}, the log of"
                    " the file sink that wrote there; name the directory to read what was committed",
                    UserWarning,
                    stacklevel=user_stacklevel(),
                )
            yield base
            return
        for file in self._search(base, pattern):
            if self._counts(file):
                yield file

    def hint(self, base: str, pattern: list[str]) -> str:
        """Return the hint in the error of a path and a pattern below it that name no file."""
        root = self._governed(f"{base}/")
        if root is not None:
            return f"; below {root} only the files in {root}/{LOG} count"
        if pattern:
            return f": nothing below {base or '/'} matches"
        if self._filesystem.get_file_info(base).type == fs.FileType.NotFound:
            return f": there is no {base}"
        return ": the folder has no files, but for names that begin with _ or a dot"

    def governing(self, directory: str) -> str | None:
        """Return the outermost directory with a log among this one and those above it, or None."""
        if directory not in self._governing:
            above = directory.rpartition("/")[0]
            root = self.governing(above) if above and above != directory else None
            if root is None and directory:
                try:
                    info = self._filesystem.get_file_info(f"{directory}/{LOG}")
                except OSError:  # A directory far above may be closed to this user; it has no log that matters.
                    info = None
                root = directory if info is not None and info.type == fs.FileType.Directory else None
            self._governing[directory] = root
        return self._governing[directory]

    def _governed(self, file: str) -> str | None:
        return self.governing(file.rpartition("/")[0]) if self._follow else None

    def _counts(self, file: str) -> bool:
        root = self._governed(file)
        return root is None or file in self._committed_below(root)

    def _search(self, base: str, pattern: list[str]) -> Iterator[str]:
        if not pattern:
            info = self._filesystem.get_file_info(base)
            if info.is_file:
                yield base
            elif info.type == fs.FileType.Directory:
                yield from self._below(base)
            return
        segment, rest = pattern[0], pattern[1:]
        if segment == "**":
            yield from self._search(base, rest or ["*"])
        for entry in self._filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True)):
            is_directory = entry.type == fs.FileType.Directory
            if is_hidden(entry.base_name):
                continue
            if segment == "**":
                if is_directory and self._enters(entry.path, *pattern):
                    yield from self._search(entry.path, pattern)
            elif fnmatch.fnmatchcase(entry.base_name, segment) and (is_directory or not rest):
                yield from self._search(entry.path, rest)

    def _below(self, base: str) -> Iterator[str]:
        """Yield all files below a directory; of a directory with a log, those in the log, wherever they are."""
        base = base.rstrip("/")
        files, with_log = [], set()
        for entry in self._entries_below(base or "/"):
            parts = entry.path[len(base) :].strip("/").split("/")
            hidden = next((index for index, part in enumerate(parts) if is_hidden(part)), None)
            if hidden is None and entry.is_file:
                files.append(entry.path)
            elif hidden is not None and parts[hidden] == LOG and self._follow:
                with_log.add("/".join([base, *parts[:hidden]]))
        # The log of a directory governs all below it. `expand` checks each file against logs above `base`.
        outermost = {self.governing(directory) for directory in with_log}
        roots = {root for root in outermost if root is not None and f"{root}/".startswith(f"{base}/")}
        yield from (file for file in files if self._governed(file) not in roots)
        there = set(files)
        for root in roots:
            committed = self._committed_below(root)
            self._check_there(root, [path for path in committed if path not in there])
            yield from committed

    def _entries_below(self, base: str) -> Iterator[fs.FileInfo]:
        """Yield all entries below a directory. On this machine no directory twice: symbolic links may lead back."""
        if not isinstance(self._filesystem, fs.LocalFileSystem):
            yield from self._filesystem.get_file_info(fs.FileSelector(base, recursive=True))
            return
        todo = [base] if self._enters(base) else []
        while todo:
            for entry in self._filesystem.get_file_info(fs.FileSelector(todo.pop())):
                yield entry
                is_directory = entry.type == fs.FileType.Directory
                if is_directory and not is_hidden(entry.base_name) and self._enters(entry.path):
                    todo.append(entry.path)

    def _enters(self, directory: str, *pattern: str) -> bool:
        """Return whether this search comes to a directory with this pattern for the first time."""
        is_local = isinstance(self._filesystem, fs.LocalFileSystem)
        key = (os.path.realpath(directory) if is_local else directory, *pattern)
        if key in self._entered:
            return False
        self._entered.add(key)
        return True

    def _check_there(self, root: str, paths: list[str]) -> None:
        for info in self._filesystem.get_file_info(paths):
            if not info.is_file:
                raise ArgumentValueError(
                    f"{root}/{LOG} holds {info.path}, which is missing: it was removed, or the directory was moved"
                    " after it was written"
                )

    def _committed_below(self, root: str) -> dict[str, None]:
        if root not in self._committed:
            self._committed[root] = dict.fromkeys(_paths_of(read_log(self._filesystem, root), self._filesystem))
        return self._committed[root]


def _paths_of(uris: list[str], filesystem: fs.FileSystem) -> Iterator[str]:
    """Yield the paths of URIs on their filesystem, with one call of pyarrow for each host, as remote calls are slow."""
    before: dict[tuple[str, str], str] = {}
    for uri in uris:
        parts = urlsplit(uri)
        path = unquote(parts.path).lstrip("/")
        host = (parts.scheme, parts.netloc)
        if host not in before:
            # Java leaves characters unquoted that pyarrow does not accept. Where S3 is, only a request would tell.
            quoted = quote(uri, safe=_URI_CHARACTERS)
            is_store = parts.scheme in S3_SCHEMES or filesystem.type_name in OBJECT_STORES
            located = path_in_store(quoted) if is_store else locate(quoted)[1]
            before[host] = located[: len(located) - len(path)]
        yield before[host] + path
