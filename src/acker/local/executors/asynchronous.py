"""Executors of components with coroutine methods, each with an event loop that follows the runtime's clock."""

from __future__ import annotations

import asyncio
import functools
import heapq
import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple

from acker.errors import RuntimeStateError
from acker.local.clock import Clock, Signal
from acker.local.collectors import AsyncBoltCollector
from acker.local.executors.base import STEP_TUPLES, Mode
from acker.local.executors.bolt import BoltExecutor, BoltTask
from acker.local.executors.spout import SpoutExecutor, SpoutTask
from acker.local.inputs import THREADS_INHERIT, ContextFreePool, context_of_caller
from acker.local.open_batches import OutcomeColumns, TreeOutcome
from acker.local.queues import Outbox
from acker.topology.methods import MAY_BE_ASYNC
from acker.topology.tuples import Tuple

# A coroutine that becomes ready makes others ready: one step is this many rounds of the loop.
_ROUNDS = 8

# A halt cancels a coroutine this often before it leaves it behind.
_CANCELS = 16

logger = logging.getLogger("acker.local")


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is that of the runtime's clock, so that a test can turn it.

    Attributes
    ----------
    dues : list of (float, int, TimerHandle)
        A heap of the times at which timers fire, in seconds.
    stands_for : str or None
        The method that waits on this loop while the clock stands, so that no timer would ever fire.
    """

    stands_for: str | None = None

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        if THREADS_INHERIT:
            self.set_default_executor(ContextFreePool(thread_name_prefix="asyncio"))
        self._runtime_clock = clock
        self.dues: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0

    def now_ns(self) -> int:
        """Return the time of the runtime's clock in nanoseconds."""
        return self._runtime_clock.now_ns()

    def time(self) -> float:
        """Return the time of the runtime's clock in seconds."""
        return self.now_ns() / 1e9

    def call_at(  # type: ignore[override]  # asyncio types args by the callback.
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Call a function at a time."""
        if self.stands_for is not None:
            raise RuntimeStateError(
                f"{self.stands_for} waits for time, and the scheduler's clock stands until it has returned; "
                "let it wait for something else in this test, or use a runtime with threads and a ManualClock"
            )
        handle = super().call_at(when, callback, *args, context=context)
        self._count += 1
        heapq.heappush(self.dues, (when, self._count, handle))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]  # asyncio types args by the callback.
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Call a function soon, from any thread."""
        return super().call_soon_threadsafe(callback, *args, context=context or context_of_caller())

    def next_due_ns(self) -> int | None:
        """Return when the next timer fires."""
        now = self.time()
        while self.dues and (self.dues[0][2].cancelled() or self.dues[0][0] <= now):
            heapq.heappop(self.dues)
        return None if not self.dues else int(self.dues[0][0] * 1e9) + 1

    def rounds(self) -> None:
        """Run what is ready, and what that makes ready, for some rounds."""
        # User code that cancels all tasks of its loop cancels this one too.
        with suppress(asyncio.CancelledError):
            self.run_until_complete(self._rounds())

    async def _rounds(self) -> None:
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)


class LoopSignal:
    """A signal that wakes an event loop."""

    def __init__(self, loop: ClockLoop) -> None:
        self._loop = loop
        self._set = True
        self._future: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Set it, from any thread."""
        self._set = True
        try:
            self._loop.call_soon_threadsafe(self.touch)
        except RuntimeError:  # The loop is closed, so nothing waits.
            return

    def clear(self) -> None:
        """Clear it."""
        self._set = False

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._set

    def touch(self) -> None:
        """Set it and end the wait, on the loop's thread."""
        self._set = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def wait(self, timeout: float | None = None) -> bool:
        """Run the loop until the signal is set or touched, or the timeout has passed."""
        self._future = self._loop.create_future()
        if not self._set:
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(asyncio.wait([self._future], timeout=timeout))
        self._future = None
        return self._set

    def wait_beside(self, coroutine: asyncio.Future[Any], timeout: float | None) -> None:
        """Run the loop until a coroutine is done, the signal is set or touched, or the timeout has passed."""
        self._future = self._loop.create_future()
        either = asyncio.wait([self._future, coroutine], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        with suppress(asyncio.CancelledError):
            self._loop.run_until_complete(either)
        self._future = None


class RunningCoroutine(NamedTuple):
    """A coroutine that processes a tuple: of which task, and since when by the runtime's clock."""

    task: AsyncBoltTask
    tup: Tuple
    since_ns: int


class AsyncBoltTask(BoltTask):
    """One task of a bolt whose `process` is a coroutine."""

    running = 0

    def claim(self, tup: Tuple) -> None:
        """Take a tuple before its coroutine starts, since one that is cancelled earlier has to fail its tuple too."""
        tup._owner = self.collector
        self.collector.executed += 1

    async def run_one(self, tup: Tuple) -> BaseException | None:
        """Process one tuple and ack it at the end; return an exception, unless the coroutine was cancelled."""
        collector = self.collector
        assert isinstance(collector, AsyncBoltCollector)
        collector.begin(tup)
        begin = self._clock.now_ns()
        try:
            returned = await self.bolt.process(tup)
            if returned is not None:
                collector.refuse_unrun("process", returned)
            if self._auto_ack:
                collector.ack_unless_settled(tup)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001  The reason of a failed tree. The loop would stop at a SystemExit.
            return error
        finally:
            collector.end(tup, self._clock.now_ns() - begin)
        return None

    def settle(self, tup: Tuple, coroutine: asyncio.Task[BaseException | None], *, halted: bool) -> None:
        """Fail a tuple whose coroutine raised or was cancelled; raise an exception that ends the topology.

        Parameters
        ----------
        halted : bool
            Whether the runtime cancels all coroutines; their trees fail with the topology.
        """
        error: BaseException | None
        try:
            error = coroutine.result()
        except asyncio.CancelledError as cancelled:
            error = None if halted else cancelled
        if error is not None:
            self._on_error(tup, error)


class _OnLoop:
    """The event loop of both executors, and how its coroutines are cancelled."""

    name: str
    clock: Clock
    signal: Signal
    mode: Mode
    seen: Mode
    outbox: Outbox
    _lifecycle_signal: Signal
    crash: BaseException | None
    halted = False  # Whether the runtime, and not user code, cancelled the coroutines.

    def _new_signal(self) -> LoopSignal:
        self.loop = ClockLoop(self.clock)
        return LoopSignal(self.loop)

    def step(self, limit: int = STEP_TUPLES) -> bool:
        """Step as any executor does; before it reports a halt, cancel all coroutines.

        Here and not in `drop`, since a loop belongs to one thread, and a coroutine that continued would emit tuples
        that no spout waits for.
        """
        if self.mode is Mode.HALT and self.seen is not Mode.HALT:
            before = self.outbox.enter()
            try:
                self._cancel()
            finally:
                self.outbox.leave(before)
        return super().step(limit)  # type: ignore[misc,no-any-return]

    def rest(self) -> None:
        """Wait until there may be something to do; coroutines run meanwhile."""
        before = self.outbox.enter(resting=True)
        try:
            super().rest()  # type: ignore[misc]
        except BaseException as error:  # noqa: BLE001  A SystemExit of a task of user code leaves the loop.
            self.crash = error
            self._lifecycle_signal.set()
        finally:
            self.outbox.leave(before)

    def _cancel(self) -> None:
        """Cancel everything on the loop, also the tasks that user code made or shields."""
        self.halted = True
        if self.loop.is_closed():
            return
        for _ in range(_CANCELS):
            running = asyncio.all_tasks(self.loop)
            if not running:
                return
            for task in running:
                task.cancel()
            try:
                self.loop.rounds()
            except BaseException:
                logger.exception("%s: a coroutine raised when it was cancelled", self.name)
        logger.error(
            "%s: %d coroutines still run although they were cancelled %d times", self.name, len(running), _CANCELS
        )

    def _shut_loop(self) -> None:
        self._cancel()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


class AsyncBoltExecutor(_OnLoop, BoltExecutor):
    """The executor of some tasks of a bolt whose `process` is a coroutine: many tuples are in it at once."""

    def __init__(self, *args: Any, at_once: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._at_once = at_once
        # In the order in which they have begun.
        self.running: dict[asyncio.Task[BaseException | None], RunningCoroutine] = {}
        self._escaped: BaseException | None = None
        self._ended = 0  # Coroutines that ended, also while the executor rested, and were not counted yet.

    # Coroutines also run while the executor rests, and while they are cancelled.

    def step(self, limit: int = STEP_TUPLES) -> bool:
        """Step as any executor does."""
        with self.state_gate or nullcontext():
            return super().step(limit)

    def rest(self) -> None:
        """Wait until there may be something to do; coroutines run meanwhile."""
        with self.state_gate or nullcontext():
            super().rest()

    def deadline_ns(self) -> int | None:
        """Return when the next tick or timer is due."""
        dues = [due for due in (super().deadline_ns(), self.loop.next_due_ns()) if due is not None]
        return min(dues, default=None)

    def _work(self, mode: Mode, limit: int) -> bool:
        self._has_started = False
        # More coroutines may start although none has ended.
        return super()._work(mode, limit) or self._has_started

    def _process(self, mode: Mode, limit: int) -> int:
        started = 0
        while started < limit and len(self.running) < self._at_once and self.mode is mode:
            if self._chunk is None:
                self._chunk, self._position = self._take_chunk(), 0
                if self._chunk is None:
                    break
            index, tuples = self._chunk
            task = self.tasks[index]
            assert isinstance(task, AsyncBoltTask)
            self._start(task, tuples[self._position])
            started += 1
            self._position += 1
            if self._position >= len(tuples):
                self._chunk = None
        if self.running:
            self.loop.rounds()
        self._has_started = started > 0
        escaped, self._escaped = self._escaped, None
        if escaped is not None:
            raise escaped
        ended, self._ended = self._ended, 0
        return ended

    def oldest_call(self) -> tuple[asyncio.Task[BaseException | None], AsyncBoltTask, Tuple] | None:
        """Return the coroutine that has run longest, its task and its tuple. Any thread may ask."""
        with suppress(RuntimeError):  # They have changed meanwhile.
            for coroutine, (task, tup, _) in self.running.items():
                return coroutine, task, tup
        return None

    def _start(self, task: AsyncBoltTask, tup: Tuple) -> None:
        task.claim(tup)
        coroutine = self.loop.create_task(task.run_one(tup))
        self.running[coroutine] = RunningCoroutine(task, tup, self.clock.now_ns())
        coroutine.add_done_callback(functools.partial(self._end, task, tup))

    def _end(self, task: AsyncBoltTask, tup: Tuple, coroutine: asyncio.Task[BaseException | None]) -> None:
        self.running.pop(coroutine, None)
        self._ended += 1
        try:
            task.settle(tup, coroutine, halted=self.halted)
        except BaseException as error:  # noqa: BLE001  asyncio would only log what a callback raises.
            self._escaped = error
        assert isinstance(self.signal, LoopSignal)
        self.signal.touch()

    def finish(self, mode: Mode) -> bool:
        """Report that OPEN or CLOSE is done."""
        if mode is Mode.CLOSE and not self.loop.is_closed():
            self._shut_loop()
        return super().finish(mode)


class AsyncSpoutTask(SpoutTask):
    """One task of a spout whose `next_tuple`, `ack` or `fail` is a coroutine.

    One of them runs at a time; outcomes wait until `next_tuple` has returned.
    """

    executor: AsyncSpoutExecutor
    loop: ClockLoop
    next_tuple_call: asyncio.Task[None] | None = None
    keep_alive_call: asyncio.Future[Any] | None = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._later: list[TreeOutcome] = []
        self.asked_ns = 0  # when `next_tuple` was called
        self._emits = 0  # Number of emits when `next_tuple` was called.
        # If only other methods are coroutines, `next_tuple` is called as in any other spout.
        self._waits = inspect.iscoroutinefunction(self.spout.next_tuple)

    def _call_next_tuple(self, limit: int) -> int:
        collector = self.collector
        for got in range(limit):
            self._keep_alive_if_due()
            if self.next_tuple_call is None and (
                self.spout._finished or self._is_full() or collector.output.must_yield
            ):
                return got
            if self.next_tuple_call is None:
                self._emits = collector.emit_count
            if not self._has_returned():
                return got
            collector.executed += 1
            collector.ack_untracked(self._ack_method())
            if collector.emit_count == self._emits:
                return got
        return limit

    def _keep_alive_if_due(self) -> None:
        outbox = self.executor.outbox
        if outbox.keep_alive_at:
            outbox.keep_alive_if_due(self.loop.now_ns())

    def _has_returned(self) -> bool:
        """Let `next_tuple` run; return whether it has returned."""
        if self.next_tuple_call is None:
            if not self._waits:
                self.call("next_tuple")
                return True
            self.asked_ns = self.loop.now_ns()
            self.next_tuple_call = self.loop.create_task(self.spout.next_tuple())
            self.next_tuple_call.add_done_callback(self._touch)
        self.loop.rounds()
        if not self.next_tuple_call.done():
            return False
        next_tuple_call, self.next_tuple_call = self.next_tuple_call, None
        next_tuple_call.result()
        return True

    def _touch(self, _: object) -> None:
        self.executor.signal.set()

    def arrived_outcomes(self) -> list[TreeOutcome]:
        """Return the outcomes that the spout did not get yet, also those that wait for `next_tuple`."""
        return [*super().arrived_outcomes(), *self._later.copy()]

    def deliver_outcomes(self, outcomes: list[TreeOutcome] | OutcomeColumns, *, log_errors: bool) -> None:
        """Deliver the outcomes of trees, once `next_tuple` has returned."""
        keep_alive_call = self.keep_alive_call
        if keep_alive_call is not None and keep_alive_call.done():
            self.keep_alive_call = None
            self._check_result(keep_alive_call, log_errors=log_errors)
        if self.next_tuple_call is not None and not self.next_tuple_call.done():
            self._later.extend(outcomes)
            return
        call = self.next_tuple_call
        if call is not None and (call.cancelled() or call.exception() is not None):
            # Not when the spout is asked the next time, since that may never happen.
            self.next_tuple_call = None
            self._check_result(call, log_errors=log_errors)
        later, self._later = self._later, []
        super().deliver_outcomes([*later, *outcomes], log_errors=log_errors)

    def _check_result(self, coroutine: asyncio.Future[Any], *, log_errors: bool) -> None:
        """Raise the exception of a coroutine; after a halt, which cancelled it, log it."""
        if not log_errors:
            coroutine.result()
        elif not coroutine.cancelled() and coroutine.exception() is not None:
            who = self.collector
            logger.error("%s: task %d raised as it stopped", who.component, who.task, exc_info=coroutine.exception())

    def keep_alive(self) -> None:
        """Call the component's `keep_alive`; its coroutine runs beside the others, one at a time."""
        if self.keep_alive_call is not None:
            return
        call = self.spout.keep_alive()
        if inspect.isawaitable(call):
            self.keep_alive_call = asyncio.ensure_future(call, loop=self.loop)
            self.keep_alive_call.add_done_callback(self._touch)
            self.loop.rounds()

    def is_quiet(self) -> bool:
        """Return whether nothing is open and every outcome was delivered."""
        return not self._later and super().is_quiet()

    def _ack_method(self) -> Callable[[Any], Any]:
        return self.ack

    def _invoke(self, method: str, *arguments: object) -> None:
        returned = getattr(self.spout, method)(*arguments)
        if method in MAY_BE_ASYNC and inspect.isawaitable(returned):
            self._finish(method, asyncio.ensure_future(returned, loop=self.loop))
        elif returned is not None:
            self.collector.refuse_unrun(method, returned)

    def _finish(self, method: str, coroutine: asyncio.Future[Any]) -> None:
        """Wait for a coroutine, which a halt cancels; `keep_alive` is called meanwhile."""
        outbox = self.executor.outbox
        who = f"{self.executor.name}: `async def {method}`"
        if not outbox.may_wait:
            self.loop.stands_for = who
            try:
                self.loop.run_until_complete(coroutine)
            finally:
                self.loop.stands_for = None
            return
        is_cancelled = False
        while not coroutine.done():
            self._keep_alive_if_due()
            if not is_cancelled and self.executor.mode in (Mode.HALT, Mode.CLOSE):
                is_cancelled = coroutine.cancel()
                logger.error("%s is cancelled, because the topology halts while it waits", who)
            left_ns = outbox.keep_alive_at - self.loop.now_ns() if outbox.keep_alive_at else None
            self.executor.signal.wait_beside(coroutine, None if left_ns is None else left_ns / 1e9)
        coroutine.result()


class AsyncSpoutExecutor(_OnLoop, SpoutExecutor):
    """The executor of some tasks of a spout with coroutines, which wait without blocking the thread."""

    signal: LoopSignal

    def deadline_ns(self) -> int | None:
        """Return when a replay or a timer is due."""
        dues = [due for due in (super().deadline_ns(), self.loop.next_due_ns()) if due is not None]
        return min(dues, default=None)

    def _work(self, mode: Mode, limit: int) -> bool:
        if asyncio.all_tasks(self.loop):
            self.loop.rounds()  # What a coroutine waits for may come although the spout is not asked.
        try:
            return super()._work(mode, limit)
        finally:
            # A coroutine may have emitted while the executor rested.
            self.flush()

    def finish(self, mode: Mode) -> bool:
        """Report that OPEN or CLOSE is done."""
        if mode is Mode.CLOSE and not self.loop.is_closed():
            self._shut_loop()
        return super().finish(mode)
