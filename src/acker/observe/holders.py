"""The tasks that hold the tuples of open trees, as runtimes name them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from acker.observe.failures import Failure
from acker.observe.reasons import ReasonKind

# Of how many trees the last holders are remembered.
_SEEN_MAX: Final = 1_000

How = Literal["process", "queue", "held", "outcome", "maybe"]


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that holds a tuple of a tree.

    Attributes
    ----------
    component : str
    task : int or None
        None: what holds it is no task, such as a micro-batch.
    how : {"process", "queue", "held", "outcome", "maybe"}
        process: it is inside user code with the tuple, or will send or ack it when that returns. queue: it waits for
        the task. held: the task has processed it, and neither acked nor failed it. outcome: the tree has ended, and its
        spout has not taken the outcome. maybe: as held, but other tasks hold tuples too, and which of them holds this
        one is not known without a trace.
    for_ms : int or None
        How long it has been there, as far as known; of an outcome, how long the spout has been inside user code.
    text : str or None
        Words for the page in place of `how`.
    line : str or None
        The line where its call stands now, if one runs; of a tuple that is held, the line where the code begins that
        has received it, unless that keeps tuples by design, as batches and windows do.
    """

    component: str
    task: int | None
    how: How
    for_ms: int | None = None
    text: str | None = None
    line: str | None = None


def keeper_of(holders: Sequence[Holder]) -> Holder | None:
    """Return what has received a tree's tuple and does nothing with it any more: its ack may be forgotten.

    None where a call works for the tree, where it waits for something else, and where that code is not known.
    """
    sure = [each for each in holders if each.how != "maybe"] or holders
    is_kept = all(each.how in ("held", "maybe") and each.line is not None for each in sure)
    return sure[0] if sure and is_kept and len({each.component for each in sure}) == 1 else None


class Forgotten(NamedTuple):
    """Trees that have ended without an ack lately because their tuples were kept.

    Attributes
    ----------
    times : int
    keeper : Holder
        What had the tuple of the last one.
    in_batch : bool
        Whether they ended with their micro-batch, and not by a timeout.
    """

    times: int
    keeper: Holder
    in_batch: bool = False

    @classmethod
    def of(cls, failures: Iterable[Failure], seen: SeenHolders) -> Forgotten | None:
        """Return those among failures, which come the newest first; None if most of these have other reasons."""
        found: list[tuple[Holder, bool]] = []
        others = 0
        for each in failures:
            reason, holders = each.reason, seen.of(each.root_id)
            if in_batch := reason.component is not None:  # as on Spark, where nothing else ends such a tree
                holders = [Holder(reason.component or "", reason.task, "held", line=reason.line)]
            keeper = keeper_of(holders) if reason.kind is ReasonKind.TIMED_OUT else None
            if keeper is not None:
                found.append((keeper, in_batch))
            elif holders or reason.kind is not ReasonKind.TIMED_OUT:
                others += 1
        return cls(len(found), *found[0]) if len(found) > others else None


class HungBefore(NamedTuple):
    """Messages that timed out lately in calls that hung.

    Attributes
    ----------
    times : int
    what : hashable
        The last of these messages.
    call : Holder
        Its call.
    """

    times: int
    what: Hashable
    call: Holder

    @classmethod
    def of(cls, failures: Iterable[Failure], seen: SeenHolders, hangs: Callable[[int], bool]) -> HungBefore | None:
        """Return those among failures, which come the newest first; None if most of these have other reasons."""
        found: list[tuple[Hashable, Holder]] = []
        others = 0
        for each in failures:
            holders = seen.of(each.root_id) if each.reason.kind is ReasonKind.TIMED_OUT else []
            calls = [one for one in holders if one.how == "process" and one.for_ms is not None and hangs(one.for_ms)]
            if calls:
                found.append((each.tup_id, calls[0]))
            else:
                others += 1
        return cls(len(found), *found[0]) if len(found) > others else None


class SeenHolders:
    """The holders that old trees were seen with last: where a tree was when it timed out. One thread adds."""

    def __init__(self) -> None:
        self._by_root: dict[int, list[Holder]] = {}

    def note(self, root_id: int, holders: list[Holder]) -> None:
        """Note the holders of a tree; the trees that were noted longest ago are forgotten."""
        self._by_root.pop(root_id, None)
        self._by_root[root_id] = holders
        while len(self._by_root) > _SEEN_MAX:
            del self._by_root[next(iter(self._by_root))]

    def of(self, root_id: int | None) -> list[Holder]:
        """Return the holders of a tree, as far as they are known."""
        return [] if root_id is None else self._by_root.get(root_id, [])
