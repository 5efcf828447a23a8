"""Benchmarks of the two classes that programs call for each message, against what one would write by hand.

`TupleTree` stands against a dict of xors that draws ids from the same generator, `OffsetTracker` against a heap of the
open offsets and a set of the done ones. Neither of the two checks anything, nor knows any other call.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from typing import Final

from acker import IdGenerator, TupleTree
from acker.offsets import OffsetTracker
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per
from benchmarks.suite.workloads import SEED

_MESSAGES: Final = 20_000
_WINDOW: Final = 100
# How far an offset may be acked before or after its turn.
_JITTER: Final = 8


def _tree(messages: int) -> int:
    """Begin, deliver and acknowledge each message; return how many messages went to the acker."""
    sent: list[object] = []
    tree = TupleTree(sent.append)
    ok = tree.mk_ack()
    for message_id in range(messages):
        with tree.track(0, message_id) as mk_ids:
            (tuple_id,) = mk_ids()
        ok(tuple_id)
    return len(sent)


def _xors(messages: int) -> int:
    """Do the same with a dict of xors; return how often it was told something."""
    xors: dict[int, int] = {}
    told, next_id = 0, IdGenerator().next
    for _ in range(messages):
        root, tuple_id = next_id(), next_id()
        xors[root] = tuple_id
        xors[root] ^= tuple_id
        if not xors[root]:
            del xors[root]
        told += 2
    return told


def tuple_tree(scale: Scale) -> Result:
    """Time messages of one tuple each: track, deliver and OK."""
    messages = scale.size(_MESSAGES, 10)

    def check(side: str, load: int, told: int) -> None:
        expect(f"what the acker of {side} was told", told, 2 * load)

    sides = {"TupleTree": _tree, "dict of xors": _xors}
    samples = Alternation(sides, check).run([messages] * (scale.pairs + 1))
    return Result(
        "µs/message",
        per(samples, messages * 1000),
        [Ratio("TupleTree", "dict of xors", scale.goal(Goal(at_most=4.5)))],
        {"messages": messages},
        {"told": 2 * messages},
    )


def _steps(offsets: int) -> list[tuple[int, int]]:
    """Return (emitted, acked) of each step, -1 for none: a window of open offsets, acked nearly in order."""
    drawn = random.Random(SEED)
    acked = sorted(range(offsets), key=lambda offset: offset + drawn.uniform(0, _JITTER))
    emitted = [*range(offsets), *[-1] * _WINDOW]
    return list(zip(emitted, [-1] * _WINDOW + acked, strict=True))


class _HeapAndSet:
    """The open offsets as a heap; those that were done out of turn wait in a set."""

    def __init__(self) -> None:
        self.heap: list[int] = []
        self.done: set[int] = set()
        self.next = 0

    def emitted(self, _partition: int, offset: int) -> None:
        heapq.heappush(self.heap, offset)

    def acked(self, _partition: int, offset: int) -> None:
        heap, done = self.heap, self.done
        done.add(offset)
        while heap and heap[0] in done:
            self.next = heapq.heappop(heap)
            done.remove(self.next)

    def committable(self, _partition: int) -> int:
        return self.next + 1


def _committable(tracker: OffsetTracker | _HeapAndSet, steps: list[tuple[int, int]]) -> int | None:
    """Return what a tracker may commit after some steps."""
    emit, ack = tracker.emitted, tracker.acked
    for emitted, acked in steps:
        if emitted >= 0:
            emit(0, emitted)
        if acked >= 0:
            ack(0, acked)
    return tracker.committable(0)


def offsets(scale: Scale) -> Result:
    """Time offsets of one partition that are emitted and acked nearly in order."""
    count = scale.size(_MESSAGES, 2 * _WINDOW)

    def loads() -> Iterator[list[tuple[int, int]]]:
        steps = _steps(count)
        for _ in range(scale.pairs + 1):
            yield steps

    def check(side: str, _: list[tuple[int, int]], committable: int | None) -> None:
        expect(f"what {side} may commit", committable, count)

    sides = {
        "OffsetTracker": lambda steps: _committable(OffsetTracker(), steps),
        "heap and set": lambda steps: _committable(_HeapAndSet(), steps),
    }
    samples = Alternation(sides, check).run(loads())
    return Result(
        "ns/offset",
        per(samples, count),
        [Ratio("OffsetTracker", "heap and set", scale.goal(Goal(at_most=1.0)))],
        {"offsets": count, "open": _WINDOW, "seed": SEED},
        {"committable": count},
    )


CASES: Final = [
    Case("tuple_tree/message", "What does a TupleTree cost beside a dict of xors?", tuple_tree),
    Case("offsets/window", "What does an OffsetTracker cost beside a heap and a set?", offsets),
]
