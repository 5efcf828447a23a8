"""The calls that run for messages, in threads of pools and in coroutines, also when their messages are over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from types import CodeType
from typing import Any, Final, Protocol

from acker._handles import TakerBase, message_variable, working
from acker.connectors.attempts import Attempt
from acker.observe.calls import Busy, Line, UserCall, stack_of_coroutine, stack_of_thread
from acker.observe.durations import format_duration
from acker.observe.reasons import ReasonKind

# A call, and the attempt that it works for.
AttemptCall = tuple[Attempt, UserCall]

_NS_PER_MS: Final = 1_000_000
# How many calls are named.
_NAMED_MAX: Final = 100
# How many places where messages are taken are named.
_PLACES_MAX: Final = 3
# Trees that are over are looked through when so many more are known.
_FORGET_EVERY: Final = 16
_TIMED_OUT: Final = ReasonKind.TIMED_OUT
# Where a thread or a coroutine stands that waits for the next message.
_WAITING: Final = frozenset({"MessageStore.take", "AsyncMessages.__anext__"})


class WorkedOn(Protocol):
    """The tree of a message that calls work for."""

    attempt: Attempt
    owner: Any
    lost: str | None
    span: Any
    tasks: dict[Any, Any] | None

    @property
    def parts(self) -> int:
        """How many of its handles have not ended."""


# The tree that the running code works for. `acker.remote.current` has a variable of its own, so that a job within a
# message, and a message within a job, hide nothing of each other.
_tree: Final[ContextVar[WorkedOn | None]] = message_variable


@dataclass(frozen=True, slots=True)
class CurrentMessage:
    """The message that the running code works for, for logs and traces.

    Attributes
    ----------
    source, key : str
    attempt : int
    headers : mapping of str to Any
    """

    source: str
    key: str
    attempt: int
    headers: Mapping[str, Any]


def current_message() -> CurrentMessage | None:
    """Return the message that the running code works for, or None.

    It is known in handlers of `Consumer.run`, in ``with`` blocks of handles, in threads of `Handle.submit`, and in
    coroutines of `Handle.spawn` and the tasks that they make; not in other processes.
    """
    tree = _tree.get()
    if tree is None:
        return None
    attempt = tree.attempt
    return CurrentMessage(tree.owner.source_name, attempt.delivery.key, attempt.number, attempt.delivery.headers)


def is_traced() -> bool:
    """Return whether the running code works for a message that has a span of OpenTelemetry."""
    tree = _tree.get()
    return tree is not None and tree.span is not None


def enter_tree(tree: WorkedOn) -> None:
    """Let the code that follows in this context work for a tree."""
    _tree.set(tree)


# What a thread of a pool does now: the tree, the pool, and since when.
_Work = tuple[WorkedOn, object, int]


class Taker(TakerBase):
    """A thread or a coroutine that iterates over messages. It notes what it takes, for those who look at its stack.

    Parameters
    ----------
    task : asyncio.Task, optional
        The coroutine.

    Attributes
    ----------
    loops : int
        How many iterations of the thread go on.
    """

    __slots__ = ("loops", "task")

    def __init__(self, task: Any = None) -> None:
        self.task = task
        self.thread = threading.get_ident()
        self.loops = 0

    def leave(self) -> None:
        """End an iteration, and forget its last message, which may be large, unless that is still open."""
        self.loops -= 1
        if self.tree is not None and not self.tree.parts:
            self.tree = None

    @property
    def is_idle(self) -> bool:
        """Whether it iterates no more, and has no open message."""
        return self.task is None and not self.loops and (self.tree is None or not self.tree.parts)

    def stack(self) -> tuple[str, tuple[Line, ...]]:
        """Return its name, and where it stands."""
        if self.task is not None:
            return self.task.get_name(), stack_of_coroutine(self.task.get_coro())
        return _thread_name(self.thread), stack_of_thread(self.thread)


class RunningCalls:
    """The calls that run for the messages of one consumer. Any thread may ask; only then stacks are read.

    Parameters
    ----------
    owner : object
        The consumer, as its trees name it.
    """

    def __init__(self, owner: object) -> None:
        self._owner = owner
        # Trees that ended before their coroutines; the I/O thread writes.
        self._over: list[WorkedOn] = []
        self._forget_at = _FORGET_EVERY
        self._has_warned = False
        # By the thread or the task.
        self._takers: dict[Any, Taker] = {}
        self._forget_takers_at = _FORGET_EVERY
        self._adding = threading.Lock()
        # Where messages are taken: the lines of loops, and the handlers.
        self._taken_at: dict[str, None] = {}

    def note_place(self, made_in: tuple[CodeType, int] | str) -> None:
        """Remember where code takes messages: an instruction of a loop, or a handler."""
        if len(self._taken_at) < _PLACES_MAX:
            self._taken_at[made_in if isinstance(made_in, str) else line_at(*made_in).short] = None

    @property
    def taken_at(self) -> str | None:
        """Where messages are taken; None before anybody takes one."""
        return " or ".join(self._taken_at.copy()) or None

    def taker(self, task: Any = None) -> Taker:
        """Return the taker that stands for this thread, or for a coroutine of it."""
        key = threading.get_ident() if task is None else task
        taker = self._takers.get(key)
        return self._add_taker(key, task) if taker is None else taker

    def _add_taker(self, key: Any, task: Any) -> Taker:
        with self._adding:
            if len(self._takers) >= self._forget_takers_at:
                self._takers = {key: each for key, each in self._takers.items() if not each.is_idle}
                self._forget_takers_at = 2 * len(self._takers) + _FORGET_EVERY
            taker = self._takers[key] = Taker(task)
        if task is not None:
            task.add_done_callback(self._end_taker)
        return taker

    def _end_taker(self, task: Any) -> None:
        with self._adding:
            self._takers.pop(task, None)

    def note_over(self, tree: WorkedOn) -> None:
        """Remember a tree that has ended while coroutines work for it."""
        if not tree.tasks:
            return
        self._over.append(tree)
        if len(self._over) >= self._forget_at:
            self._over = [each for each in self._over if each.tasks]
            self._forget_at = 2 * len(self._over) + _FORGET_EVERY

    def busy(self, open_attempts: Iterable[Attempt]) -> Busy:
        """Return how many calls run."""
        threads = self._threads()
        pools = _pools(threads)
        trees = [tree for tree, _, _ in threads.values()]
        trees += [tree for tree in self._trees(open_attempts) for _ in tree.tasks or ()]
        over = [tree.attempt for tree in trees if tree.attempt.state != "open"]
        return Busy(
            running=len(trees),
            over=len(over),
            timed_out=sum(attempt.reason is not None and attempt.reason.kind is _TIMED_OUT for attempt in over),
            threads=len(threads),
            # A pool has no public names for these.
            threads_max=sum(getattr(pool, "_max_workers", 0) for pool in pools),
            waiting=sum(map(_waiting, pools)),
        )

    def some_wait(self, open_attempts: Sequence[Attempt], pending: int) -> bool:
        """Return whether of so many messages some wait for a call to begin, as far as is known."""
        threads = self._threads()
        if any(map(_waiting, _pools(threads))):
            return True
        with self._adding:
            takers = list(self._takers.values())
        trees = [tree for tree, _, _ in threads.values()] + self._trees(open_attempts)
        trees += [taker.tree for taker in takers if taker.tree is not None]
        return pending > len({tree.attempt.message_id for tree in trees if tree.parts and tree.attempt.state == "open"})

    def of(self, open_attempts: Iterable[Attempt], now_ns: int, most: int = _NAMED_MAX) -> list[AttemptCall]:
        """Return the calls that have run longest, the longest first, with their stacks.

        Parameters
        ----------
        open_attempts : iterable of Attempt
            Those that were handed out. Calls for attempts that are over are returned too.
        now_ns : int
            Of the monotonic clock.
        most : int
            How many are returned.
        """
        return self._calls_for(self._trees(open_attempts), now_ns, most)

    def told(self, trees: Sequence[WorkedOn]) -> dict[int, str]:
        """Return which calls run for trees that end now, in words, by the numbers of their attempts."""
        by_number: dict[int, list[UserCall]] = {}
        numbers = {tree.attempt.message_id for tree in trees}
        for attempt, call in self._calls_for(trees, monotonic_ns(), _NAMED_MAX, numbers) if trees else ():
            by_number.setdefault(attempt.message_id, []).append(call)
        return {number: _told(calls) for number, calls in by_number.items()}

    def _calls_for(
        self, trees: Iterable[WorkedOn], now_ns: int, most: int, numbers: Container[int] | None = None
    ) -> list[AttemptCall]:
        """Return the calls of coroutines for these trees, and those of threads, if wished of these attempts alone."""
        found: list[tuple[int, Attempt, Callable[[], str], Callable[[], tuple[Line, ...]]]] = [
            (since_ns, tree.attempt, partial(_thread_name, number), partial(stack_of_thread, number))
            for number, (tree, _, since_ns) in self._threads().items()
            if numbers is None or tree.attempt.message_id in numbers
        ]
        for tree in trees:
            # The time of each `spawn` is not known.
            found += [
                (tree.attempt.since_ns, tree.attempt, task.get_name, partial(stack_of_coroutine, task.get_coro()))
                for task in (tree.tasks or {}).copy()
            ]
        found.sort(key=lambda each: each[0])
        calls = [
            (attempt, _user_call(name(), attempt, now_ns - since_ns, stack()))
            for since_ns, attempt, name, stack in found[:most]
        ]
        # A message that was handed over has other calls, and the loop that took it does not hold it.
        handed_over = {attempt.message_id for _, attempt, _, _ in found}
        loops = [each for each in self._loops(now_ns, numbers) if each[0].message_id not in handed_over]
        return sorted([*calls, *loops], key=lambda each: -each[1].for_ms)[:most]

    def _loops(self, now_ns: int, numbers: Container[int] | None) -> Iterator[AttemptCall]:
        """Yield the loops over messages that work for the message which they took last, and do not wait for another."""
        threads = self._threads()
        with self._adding:
            takers = list(self._takers.values())
        for taker in takers:
            tree = taker.tree
            if tree is None or not tree.parts or tree.tasks or tree.lost is not None or taker.thread in threads:
                continue
            if numbers is not None and tree.attempt.message_id not in numbers:
                continue
            name, stack = taker.stack()
            if stack and not any(line.function in _WAITING for line in stack):
                attempt = tree.attempt
                yield attempt, _user_call(name, attempt, now_ns - attempt.since_ns, stack)

    def warn_of_pools(self, name: str, logger: logging.Logger) -> None:
        """Say once which calls run in pools of threads, also for messages that are over: the program waits for them."""
        if self._has_warned:
            return
        now_ns = monotonic_ns()
        calls = [
            _user_call(_thread_name(number), tree.attempt, now_ns - since_ns, stack_of_thread(number))
            for number, (tree, pool, since_ns) in self._threads().items()
            if isinstance(pool, ThreadPoolExecutor)
        ]
        if calls:
            self._has_warned = True
            text = "%s: %d calls still run in pools, and the program ends only when they return: %s"
            logger.warning(text, name, len(calls), "; ".join(map(str, calls[:_NAMED_MAX])))

    def _threads(self) -> dict[int, _Work]:
        return {number: work for number, work in working.copy().items() if work[0].owner is self._owner}

    def _trees(self, open_attempts: Iterable[Attempt]) -> list[WorkedOn]:
        trees = [attempt.tree for attempt in open_attempts] + self._over
        return [tree for tree in trees if tree is not None and tree.tasks]


def line_at(code: CodeType, instruction: int) -> Line:
    """Return the line of an instruction."""
    lines = (number for first, last, number in code.co_lines() if first <= instruction < last and number is not None)
    return Line(code.co_filename, next(lines, code.co_firstlineno), code.co_qualname)


def _pools(threads: Mapping[int, _Work]) -> list[object]:
    return list({id(pool): pool for _, pool, _ in threads.values()}.values())


def _waiting(pool: object) -> int:
    """Return how many calls wait for a thread of a pool, if it tells."""
    queue = getattr(pool, "_work_queue", None)  # there is no public name
    return 0 if queue is None else int(queue.qsize())


def _told(calls: Sequence[UserCall]) -> str:
    """Return what the longest of the calls for a message does, and how many others there are."""
    longest = calls[0]
    where = "" if longest.line is None else f" at {longest.line.short}"
    others = "" if len(calls) == 1 else f", and {len(calls) - 1} more"
    return f"{longest.who} was in one call{where} for {format_duration(longest.for_ms)}{others}"


def _thread_name(number: int) -> str:
    return next((each.name for each in threading.enumerate() if each.ident == number), str(number))


def _user_call(who: str, attempt: Attempt, for_ns: int, stack: tuple[Line, ...]) -> UserCall:
    return UserCall(who, attempt.delivery.key, max(0, for_ns) // _NS_PER_MS, _over(attempt), stack)


def _over(attempt: Attempt) -> str | None:
    if attempt.state == "open":
        return None
    kind = None if attempt.reason is None else attempt.reason.kind
    return kind.value if kind in (_TIMED_OUT, ReasonKind.FAILED) else "is over"
