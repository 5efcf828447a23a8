"""The log of a file sink of Structured Streaming: the files that it committed.

A task that failed, or a driver that died, leaves uncommitted files behind. So the sink records the files that each
micro-batch committed, in ``_spark_metadata`` below its directory: one file for each micro-batch, named by its number,
and from time to time one ``N.compact`` with all up to N. The first line of each is its version, the others are JSON,
one line a file. Spark reads only the files in the log, and so does acker.
"""

from __future__ import annotations

import json
import re
from typing import Final

from pyarrow import fs

from acker.errors import ArgumentValueError

LOG: Final = "_spark_metadata"
VERSION: Final = "v1"

_NAME: Final = re.compile(r"(\d+)(\.compact)?")
_ADD: Final = "add"
_DELETE: Final = "delete"
# How often in a row a running sink may compact its log and remove files that were about to be read.
_ATTEMPTS: Final = 5


def read_log(filesystem: fs.FileSystem, directory: str) -> list[str]:
    """Return the URIs of the files that a file sink committed, in the order of its log, each once.

    Parameters
    ----------
    filesystem : pyarrow.fs.FileSystem
    directory : str
        The directory of the sink, with a log.

    Raises
    ------
    ArgumentValueError
        A file of the log is missing, is damaged, or is of another version; it is named.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        lines: list[tuple[str, str]] = []
        names = _list_log_files(filesystem, directory)
        try:
            for name in names:
                lines += _read(filesystem, f"{directory}/{LOG}/{name}")
        except FileNotFoundError as error:
            # Compacted by the sink since the log was listed, unless the log still needs it.
            if attempt == _ATTEMPTS or _list_log_files(filesystem, directory) == names:
                raise ArgumentValueError(
                    f"{directory}/{LOG}: damaged: a file of the log is missing: {error}"
                ) from error
            continue
        deleted = {uri for uri, action in lines if action == _DELETE}
        return list(dict.fromkeys(uri for uri, _ in lines if uri not in deleted))
    raise AssertionError


def _list_log_files(filesystem: fs.FileSystem, directory: str) -> list[str]:
    """Return the names of the files that make up the log: the last compact one and those after it."""
    compact: dict[int, str] = {}
    plain: dict[int, str] = {}
    for entry in filesystem.get_file_info(fs.FileSelector(f"{directory}/{LOG}", allow_not_found=True)):
        match = _NAME.fullmatch(entry.base_name)
        if match is not None and entry.is_file:
            (compact if match[2] else plain)[int(match[1])] = entry.base_name
    if not compact and not plain:
        return []
    last = max([*compact, *plain])
    begin = max(compact, default=-1)
    for number in range(begin + 1, last + 1):
        if number not in plain:
            raise ArgumentValueError(f"{directory}/{LOG}: damaged: micro-batch {number} is missing, but {last} exists")
    first = [compact[begin]] if compact else []
    return first + [plain[number] for number in range(begin + 1, last + 1)]


def _read(filesystem: fs.FileSystem, path: str) -> list[tuple[str, str]]:
    """Return (URI, action) of each line in one file of a log, without directories."""
    with filesystem.open_input_stream(path) as source:
        content = source.read()
    try:
        version, *lines = content.decode().split("\n")
    except UnicodeDecodeError as error:
        raise ArgumentValueError(f"{path}: damaged: {error}") from error
    if version != VERSION:
        raise ArgumentValueError(f"{path}: expected the log of a file sink, of version {VERSION}, got {version[:40]!r}")
    found: dict[tuple[str, str], None] = {}
    for number, line in enumerate(lines, 2):
        try:
            entry = json.loads(line)
            uri, action = entry["path"], entry["action"]
            is_directory = entry["isDir"]
        except (ValueError, TypeError, KeyError) as error:
            raise ArgumentValueError(f"{path}, line {number}: damaged: {type(error).__name__}: {error}") from error
        if not isinstance(uri, str) or action not in (_ADD, _DELETE):
            raise ArgumentValueError(
                f"{path}, line {number}: expected a path, and the action {_ADD!r} or {_DELETE!r}, got {line[:200]}"
            )
        if (uri, action) in found:  # One flipped bit makes part-00001 of part-00000, which would be lost.
            raise ArgumentValueError(f"{path}, line {number}: damaged: {uri} is there twice")
        if not is_directory:
            found[uri, action] = None
    return list(found)
