"""Tokens and reports as bytes: what goes to another process with a job, and what comes back. docs/remote.md."""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
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
_TOKEN_TEXT: Final = re.compile(r"a([0-9a-z])\.([A-Za-z0-9_-]{44})(?:\.([A-Za-z0-9_-]{22}))?", re.ASCII)
_REPORT: Final = struct.Struct(">QQIQIB")
_PART: Final = struct.Struct(">BH")
_REASON, _NAME, _SIGNATURE = 1, 2, 3
_SERIAL: Final = struct.Struct(">I")
_MAC_BYTES: Final = 16
_SECRET_BYTES_MIN: Final = 16
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


class Seal:
    """Signs tokens and reports with a secret, which nothing shows.

    Parameters
    ----------
    secret : str or bytes
        At least 16 bytes.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    """

    __slots__ = ("_keyed",)

    def __init__(self, secret: str | bytes) -> None:
        if not isinstance(secret, str | bytes):
            raise ArgumentTypeError(f"secret: expected a text or bytes, got {type(secret).__name__}")
        key = secret.encode() if isinstance(secret, str) else secret
        if len(key) < _SECRET_BYTES_MIN:
            raise ArgumentValueError(f"secret: expected at least {_SECRET_BYTES_MIN} bytes, got {len(key)}")
        self._keyed = hmac.new(key, digestmod=hashlib.sha256)

    def mac(self, *parts: bytes) -> bytes:
        """Return the 16 bytes that sign some bytes."""
        keyed = self._keyed.copy()
        for part in parts:
            keyed.update(part)
        return keyed.digest()[:_MAC_BYTES]

    def sign_report(self, data: bytes, address: bytes, serial: int) -> bytes:
        """Return a report to an address with its signature.

        Parameters
        ----------
        data : bytes
        address : bytes
        serial : int
            Which report of its execution it is, from 1.
        """
        data += _PART.pack(_SIGNATURE, _SERIAL.size + _MAC_BYTES) + _SERIAL.pack(serial)
        return data + self.mac(b"acker report 1", address, data)

    def serial_of(self, data: bytes, address: bytes) -> int | None:
        """Return the serial of a report that came to an address; None if its signature is wrong or missing."""
        signed, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        end = len(signed) - _SERIAL.size
        if end < _REPORT.size + _PART.size:
            return None
        head = _PART.pack(_SIGNATURE, _SERIAL.size + _MAC_BYTES)
        if (
            not hmac.compare_digest(self.mac(b"acker report 1", address, signed), mac)
            or signed[:end][-len(head) :] != head
        ):
            return None
        return int(_SERIAL.unpack_from(signed, end)[0])


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


def write_token(token: Token, seal: Seal | None) -> str:
    """Return a token as text, signed if there is a seal."""
    return token.text if seal is None else f"{token.text}.{_token_mac(token, seal)}"


def _token_mac(token: Token, seal: Seal) -> str:
    return base64.urlsafe_b64encode(seal.mac(b"acker token 1", _TOKEN.pack(*token))).decode().rstrip("=")


def read_token(text: object, seal: Seal | None = None) -> Token:
    """Read a token.

    Raises
    ------
    TokenError
        It is none, one of another version, or not signed as the seal does it.
    """
    found = _TOKEN_TEXT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        length = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        # Without the text: a token is a key to its tree, and anything could stand there.
        raise TokenError(f"this is no token: expected 'a{_VERSION}.' and 44 letters of base64, got {length}")
    version, letters, mac = found.groups()
    if version != _VERSION:
        raise TokenError(
            f"this token has version {version}, and this acker reads version {_VERSION}: use one release of acker where"
            " jobs are made and where they run"
        )
    token = Token(*_TOKEN.unpack(base64.urlsafe_b64decode(letters)))
    if seal is None and mac is not None:
        raise TokenError("this token is signed: give the replies secret=, the same as where it was made")
    if seal is not None and not hmac.compare_digest(mac or "", _token_mac(token, seal)):
        raise TokenError("this token is not signed with the secret= of these replies: somebody else has made it")
    return token


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
