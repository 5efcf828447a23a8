"""Tokens and reports as bytes: what goes to another process with a job, and what comes back. docs/remote.md."""

from __future__ import annotations

import base64
import enum
import os
import re
import struct
from typing import Final, NamedTuple

from acker.errors import ArgumentTypeError, ArgumentValueError, TokenError

ADDRESS_BYTES: Final = 13
# The highest place of a job, and so the most jobs of one execution.
JOBS_LIMIT: Final = 2**32 - 1

_VERSION: Final = "1"
_TOKEN: Final = struct.Struct(f">{ADDRESS_BYTES}sQQI")
_TOKEN_TEXT: Final = re.compile(r"a([0-9a-z])\.([A-Za-z0-9_-]{44})", re.ASCII)
_REPORT: Final = struct.Struct(">QQIQIB")
_PART: Final = struct.Struct(">BH")
_REASON, _NAME = 1, 2
# Longer texts are cut: they go into logs, and whoever has a token can send them.
TEXT_MAX: Final = 500
# So many of the jobs that an execution made have a name in its report.
NAMES_MAX: Final = 100


class ReportKind(enum.IntEnum):
    """The kinds of reports: a job is done, it failed for good, or it needs the whole timeout again."""

    OK = 1
    FAIL = 2
    MORE_TIME = 3


class Token(NamedTuple):
    """The name of one job, and where to report.

    Attributes
    ----------
    address : bytes
        Of the process that waits: 13 random bytes.
    tree : int
        The number of the tree.
    maker : int
        The number of the execution that made the job.
    place : int
        Which of its jobs this is, from 0.
    """

    address: bytes
    tree: int
    maker: int
    place: int

    @property
    def text(self) -> str:
        """The token as text: 47 characters that need no escapes in a header or a URL."""
        return f"a{_VERSION}.{base64.urlsafe_b64encode(_TOKEN.pack(*self)).decode()}"


class Report(NamedTuple):
    """A message of one execution of a job to the owner of its tree.

    Attributes
    ----------
    tree, maker, place : int
        The job, as its token names it.
    execution : int
        The number of this execution; the jobs that it made are named after it.
    jobs : int
        How many jobs it made.
    kind : int
        A `ReportKind`.
    reason : str
        Of a failure.
    names : tuple of str
        Of the first jobs that it made, for people.
    """

    tree: int
    maker: int
    place: int
    execution: int
    jobs: int
    kind: int
    reason: str = ""
    names: tuple[str, ...] = ()


def random_number() -> int:
    """Return a number for a tree or an execution, which nobody can guess: 64 bits of the operating system."""
    return int.from_bytes(os.urandom(8), "big")


def check_name(name: object) -> None:
    """Refuse a name of a job that is no text, before anything is counted.

    Raises
    ------
    ArgumentTypeError
        It is something else.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(f"token: expected the name of a job as a string, got {type(name).__name__}")


def read_token(text: object) -> Token:
    """Read a token.

    Raises
    ------
    TokenError
        It is none, or one of another version.
    """
    found = _TOKEN_TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        length = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        # Without the text: a token is a key to its tree, and anything could stand there.
        raise TokenError(f"this is no token: expected 'a{_VERSION}.' and 44 letters of base64, got {length}")
    version, letters = found.groups()
    if version != _VERSION:
        raise TokenError(
            f"this token has version {version}, and this acker reads version {_VERSION}: use one release of acker where"
            " jobs are made and where they run"
        )
    return Token(*_TOKEN.unpack(base64.urlsafe_b64decode(letters)))


def write_report(report: Report) -> bytes:
    """Return a report as bytes: 33, and its optional parts."""
    head = _REPORT.pack(*report[:6])
    parts = [(_REASON, report.reason)] if report.reason else []
    parts += [(_NAME, name) for name in report.names[:NAMES_MAX]]
    return head + b"".join(_part(kind, text) for kind, text in parts)


def _part(kind: int, text: str) -> bytes:
    content = text[:TEXT_MAX].encode("utf-8", "backslashreplace")
    return _PART.pack(kind, len(content)) + content


def read_report(data: bytes) -> Report:
    """Read a report; parts of an unknown kind are skipped.

    Raises
    ------
    ArgumentValueError
        The bytes are no report.
    """
    if len(data) < _REPORT.size:
        raise ArgumentValueError(f"a report has at least {_REPORT.size} bytes, and this has {len(data)}")
    report = Report(*_REPORT.unpack_from(data))
    if report.kind not in _KINDS:
        raise ArgumentValueError(f"a report of the unknown kind {report.kind}")
    if len(data) == _REPORT.size:
        return report
    reason, at = "", _REPORT.size
    names: list[str] = []
    while at < len(data):
        end = at + _PART.size
        if end > len(data) or end + (length := _PART.unpack_from(data, at)[1]) > len(data):
            raise ArgumentValueError(f"a report whose part at byte {at} is cut off")
        text = data[end : end + length].decode("utf-8", "backslashreplace")[:TEXT_MAX]
        if data[at] == _REASON:
            reason = text
        elif data[at] == _NAME and len(names) < NAMES_MAX:
            names.append(text)
        at = end + length
    return report._replace(reason=reason, names=tuple(names))


_KINDS: Final = frozenset(map(int, ReportKind))
