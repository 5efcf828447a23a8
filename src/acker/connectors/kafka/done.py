"""The metadata of a Kafka commit: a text that says which messages above its offset are done.

An open message holds the commit of its partition. Without this text, everything that is done above it would be
delivered again after a restart or a rebalance, however much that is.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

_NAME: Final = "acker1"
_RUNS, _BITS = "r", "b"

# The first offset of a run, and the one after its last.
Run = tuple[int, int]


class DoneAbove:
    """The done messages of a partition above its commit, as the last owner of the partition committed them.

    A message is skipped only if it is not younger than all that this owner had read: after a loss of data, or when the
    topic was made anew, the same offsets are those of new messages.

    Parameters
    ----------
    text : str or None
        The metadata of the commit. What acker has not written says nothing.
    offset : int
        The offset of the commit.

    Attributes
    ----------
    latest_ms : int
        The latest timestamp of all messages that were read; -1 if that is not known.
    """

    def __init__(self, text: str | None = None, offset: int = 0) -> None:
        self.latest_ms = -1
        self.runs: deque[Run] = deque()
        self._read(text or "", offset)

    def __bool__(self) -> bool:
        return bool(self.runs)

    def has(self, offset: int, timestamp_ms: int) -> bool:
        """Return whether a message is done; call this with ascending offsets."""
        while self.runs and self.runs[0][1] <= offset:
            self.runs.popleft()
        return bool(self.runs) and self.runs[0][0] <= offset and timestamp_ms <= self.latest_ms

    def _read(self, text: str, offset: int) -> None:
        head, _, body = text.partition(":")
        name, kind, latest_ms, checksum = (*head.split(" "), "", "", "", "")[:4]
        if name != _NAME:
            return
        try:
            payload = base64.b64decode(body, validate=True)
            if int(checksum, 16) != zlib.crc32(payload):
                return
            self.runs.extend(_runs_of_lengths(payload, offset) if kind == _RUNS else _runs_of_bits(payload, offset))
            self.latest_ms = int(latest_ms)
        except (ValueError, binascii.Error):
            self.runs.clear()


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Yield ascending runs, and those that touch each other as one."""
    last: Run | None = None
    for run in runs:
        if last is not None and run[0] <= last[1]:
            last = last[0], max(last[1], run[1])
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last


def metadata_of(offset: int, runs: Iterable[Run], latest_ms: int, size_max: int) -> tuple[str, bool]:
    """Return the text of a commit, and whether it has all runs.

    Parameters
    ----------
    offset : int
        The offset of the commit.
    runs : iterable of (first, end)
        From the offset on, ascending, and not touching each other.
    latest_ms : int
        The latest timestamp of all messages that were read.
    size_max : int
        In bytes; the broker's ``offset.metadata.max.bytes``. Runs beyond it are left out.
    """
    runs = list(runs)
    if not runs:
        return "", True
    room = (size_max - len(f"{_NAME} {_RUNS} {latest_ms} {0:08x}:")) // 4 * 3
    texts = []
    for kind, (payload, count) in ((_RUNS, _lengths(offset, runs, room)), (_BITS, _bits(offset, runs, room))):
        body = base64.b64encode(payload).decode()
        texts.append((-count, len(body), f"{_NAME} {kind} {latest_ms} {zlib.crc32(payload):08x}:{body}"))
    left_out, _, text = min(texts)  # the one that has more messages, else the shorter one
    count = -left_out
    return text if count else "", count == sum(end - first for first, end in runs)


def _lengths(offset: int, runs: Iterable[Run], room: int) -> tuple[bytes, int]:
    """Return the lengths of open and done runs in turn, seven bits a byte, and how many messages are in them."""
    payload, count, at = bytearray(), 0, offset
    for first, end in runs:
        piece = _varint(first - at) + _varint(end - first)
        if len(payload) + len(piece) > room:
            break
        payload += piece
        count += end - first
        at = end
    return bytes(payload), count


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _runs_of_lengths(payload: bytes, offset: int) -> Iterator[Run]:
    values, value, shift = [], 0, 0
    for byte in payload:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    at = offset
    for open_count, done_count in zip(values[::2], values[1::2], strict=True):
        first = at + open_count
        at = first + done_count
        yield first, at


def _bits(offset: int, runs: Iterable[Run], room: int) -> tuple[bytes, int]:
    """Return a bit for each offset, and how many messages are in them."""
    bits, count = 0, 0
    end_max = offset + 8 * room
    for first, end in runs:
        if first >= end_max:
            break
        size = min(end, end_max) - first
        bits |= ((1 << size) - 1) << (first - offset)
        count += size
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little"), count


def _runs_of_bits(payload: bytes, offset: int) -> Iterator[Run]:
    first = None
    for at, bit in enumerate(format(int.from_bytes(payload, "little"), "b")[::-1] + "0", offset):
        if bit == "1" and first is None:
            first = at
        elif bit == "0" and first is not None:
            yield first, at
            first = None
