"""The consumer: messages of a broker, acked when everything that derives from them is done."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypedDict, Unpack, get_origin, overload

from acker._engine.ids import IdGenerator
from acker._handles import MessageLoop, WakeMark, this_process, unless_over
from acker.connectors.attempts import Attempt
from acker.connectors.calls import RunningCalls
from acker.connectors.consumer_stats import ConsumerHealth, ConsumerStats
from acker.connectors.handles import Message, MessageTree, Owner, Value, end_by, tree_of
from acker.connectors.io_thread import IoThread
from acker.connectors.message_store import MessageStore
from acker.connectors.open_messages import OpenMessages, describe_open
from acker.connectors.options import ErrorTypes, FinalErrors, MessageOptions, check_secs, check_whole
from acker.connectors.publisher import Publisher
from acker.connectors.source import Source, no_source_error
from acker.connectors.trees import MessageTrees
from acker.connectors.unrun import DECODE_FIX, refuse_unrun, unrun_error
from acker.errors import ArgumentTypeError, ArgumentValueError, ForkedError, exception_text
from acker.observe.failures import FailureLog

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from acker.connectors.async_messages import AsyncMessages
    from acker.connectors.consumer_view import ConsumerView
    from acker.connectors.handlers import Until
    from acker.connectors.jobs import Jobs
    from acker.connectors.letters import DeadLetters
    from acker.connectors.order import KeyOf, KeyOrder, Pace
    from acker.connectors.reports import Reporter
    from acker.connectors.tracing import Spans
    from acker.observe.stats import RuntimeState
    from acker.remote.replies import Replies
    from acker.ui.options import LivePage, PageChoice
    from acker.ui.server import LiveServer

# An I/O thread that takes no turn for longer hangs.
_SILENT_SECS_MAX: Final = 60.0
# How long calls of handlers have after the end, at least, to return to their threads.
_RETURN_SECS: Final = 1.0


class _Options(TypedDict, total=False):
    """The options of a consumer that do not change its type."""

    timeout_secs: float
    open_max: int
    attempts_max: int | None
    backoff_secs: float
    backoff_secs_max: float
    dead_letters: Publisher | str | None
    retry_on: ErrorTypes | None
    final_on: ErrorTypes
    tracer_provider: TracerProvider | None
    drain_secs: float
    deliveries_max: int | None
    trace: bool
    name: str | None
    rate_max: float | None
    key: KeyOf | str | None
    open_max_per_key: int | None
    replies: Replies | None
    follow: Replies | None
    ui: PageChoice


class Consumer(Owner, Generic[Value]):
    """Hands out the messages of a source, and acks each when everything that derives from it is done.

    Iterate over it, from one thread or several, or use `aiter` on an event loop. End each message, as with a ``with``
    block; give work that goes elsewhere a `child`.

    Parameters
    ----------
    source : Source
        Such as `acker.connectors.rabbitmq.RabbitMQ`.
    timeout_secs : float
        A message that is not done in this time fails; it times out after 1 to 1.25 times as long. It counts from the
        hand-out, so messages that wait in this process do not time out.
    open_max : int
        The most messages in this process that are not settled: those not handed out, open ones, and those that wait for
        a retry. Further ones stay with the broker.
    attempts_max : int, optional
        After so many failed attempts a message becomes a dead letter. None: a message is tried again without an end.
        Where the broker itself delivers failed messages again (SQS, NATS JetStream, PostgreSQL), each delivery counts
        as an attempt: also one that ended with its process and, but for PostgreSQL, one that a stop gave back.
    backoff_secs, backoff_secs_max : float
        The wait after the first failed attempt, and the longest one; each wait is twice the one before.
    dead_letters : Publisher or "broker", optional
        Where dead letters go. The message is acked when its dead letter is confirmed. "broker": the broker's own place,
        for sources with `can_give_up`. A message that `decode` refuses goes there at once.
    decode : callable or class, optional
        Makes `message.value` of the body; for example ``json.loads``. A model of pydantic, a struct of msgspec or a
        dataclass reads JSON, and `Consumer` and `Message` are generic in it. Types whose call does not read a body,
        such as str and list[Order], are refused. By default the value is the body, as bytes.
    deliveries_max : int, optional
        A message that the broker has delivered more often becomes a dead letter without an attempt: it may have ended
        the processes that worked on it. By default `attempts_max` and ten more. In the second half of it, a
        message that was delivered more than `attempts_max` times, or comes for one of the last five times, is worked on
        alone, so that no other one shares its fate. Kafka and classic queues of RabbitMQ do not count.
    retry_on, final_on : type of exception or tuple of them, optional
        Exceptions after which a message is tried again, and those after which no further attempt can succeed, so that
        it becomes a dead letter at once; `Reject` always is of these. By default all others are tried again. Where
        `retry_on` is given, only those it names are; `final_on` may except some of them.
    tracer_provider : opentelemetry.trace.TracerProvider, optional
        Make a span for each attempt at a message, with a child for each call and coroutine of its work. The parent is
        the span that the headers of the message name; what the work publishes names its own.
    drain_secs : float
        How long the end waits for open messages. Those that are not done then go back to the broker.
    trace : bool
        Whether each handle remembers the stack where it was made, for `oldest` and for warnings. This makes a child
        cost ten times as much. By default a handle remembers the line only.
    name : str, optional
        For logs, metrics and threads; by default that of the source.
    rate_max : float, optional
        The most messages a second, evenly: what was not taken in time is not made up for later.
    key : str or callable, optional
        Messages of one key are handed out one after the other: the next one when the one before is done, or its dead
        letter is confirmed, so it also waits for further attempts. The name of a header, or a function of the
        `Delivery`; one without a key (None) waits for none. "broker": Kafka's key, within its partition, or the group
        of SQS. By default the group for FIFO queues of SQS, and no order elsewhere. Failed messages are tried again in
        this process then.
    open_max_per_key : int, optional
        With more than 1, so many messages of a key are worked on at a time, in no order. None: `key` does not count.
    replies : Replies, optional
        Such as `acker.remote.redis.RedisReplies`: where jobs in other processes report for which messages wait. See
        `Handle.token`. Several consumers may share it, and none closes it.
    follow : Replies, optional
        A message whose header ``acker`` is a token is a job of the tree of whoever made the token, and is reported
        there: that it is done, before its ack; that it has failed, after its dead letter. Without `replies`, the jobs
        of such a message belong to that tree as well.
    ui : LivePage, bool, int or str, optional
        Show a live page while the consumer runs: True, a port, "HOST:PORT" or an `acker.ui.LivePage`. Its URL is
        printed at the start.

    Attributes
    ----------
    page : LiveServer or None
        The live page from the start on, if `ui` asked for one.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        An option has a wrong type or value.

    Examples
    --------
    >>> with Consumer(source, timeout_secs=300) as consumer:        # doctest: +SKIP
    ...     for message in consumer:
    ...         with message:
    ...             for part in message.value.split():
    ...                 message.submit(pool, work, part)
    """

    @overload
    def __init__(
        self: Consumer[bytes], source: Source, *, decode: None = None, **options: Unpack[_Options]
    ) -> None: ...
    @overload
    def __init__(self, source: Source, *, decode: type[Value], **options: Unpack[_Options]) -> None: ...
    @overload
    def __init__(self, source: Source, *, decode: Callable[[bytes], Value], **options: Unpack[_Options]) -> None: ...

    def __init__(
        self,
        source: Source,
        *,
        timeout_secs: float = 300.0,
        open_max: int = 1000,
        attempts_max: int | None = None,
        backoff_secs: float = 1.0,
        backoff_secs_max: float = 60.0,
        dead_letters: Publisher | str | None = None,
        decode: Callable[[bytes], Any] | type | None = None,
        retry_on: ErrorTypes | None = None,
        final_on: ErrorTypes = (),
        tracer_provider: TracerProvider | None = None,
        drain_secs: float = 30.0,
        deliveries_max: int | None = None,
        trace: bool = False,
        name: str | None = None,
        rate_max: float | None = None,
        key: KeyOf | str | None = None,
        open_max_per_key: int | None = 1,
        replies: Replies | None = None,
        follow: Replies | None = None,
        ui: PageChoice = None,
    ) -> None:
        _check_source(source, decode)
        check_secs("timeout_secs", timeout_secs, above_zero=True)
        options = MessageOptions(
            open_max, attempts_max, backoff_secs, backoff_secs_max, dead_letters, drain_secs, deliveries_max
        )
        mark = WakeMark()
        super().__init__(IdGenerator(), mark, trace)
        self.final_errors = FinalErrors(retry_on, final_on)
        self.final_errors.check(dead_letters)
        self.name = source.name if name is None else name
        self.source_name = source.name
        self.spans = None if tracer_provider is None else _spans_of(tracer_provider, source)
        self.logger = logging.getLogger("acker.connectors")
        self.jobs, reporter = _jobs_of(replies, follow, self.name)
        self._last_pool: ThreadPoolExecutor | None = None
        self._decode = _decoder_of(decode) if _is_type(decode) else decode
        self._page_options = None if ui is None else _page_options(ui)
        self._view: ConsumerView | None = None
        self._store = MessageStore(
            source.name,
            options,
            self.logger,
            redelivers=source.redelivers,
            on_over=self._end_tree,
            failures=None if self._page_options is None else FailureLog(),
            order=_order_of(source, key, open_max_per_key),
            pace=None if rate_max is None else _pace_of(rate_max),
            begin_job=None if reporter is None else reporter.begin_job,
        )
        self._calls = RunningCalls(self)
        self._trees = MessageTrees(self.name, timeout_secs, self.logger, self._store, self._calls, self.inbox)
        self._io = IoThread(source, self._store, options, self.logger, self._trees.turn, reporter, mark)
        self._source = source
        self._options = options
        self.lock = threading.Lock()
        self.page: LiveServer | None = None
        self._timeout_secs = timeout_secs
        self._started: float | None = None
        self._starting = threading.Lock()

    # ---- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Connect, on the I/O thread. Iteration and ``with`` do this, too.

        Raises
        ------
        RuntimeStateError
            It was started before, or another consumer uses the source.
        """
        self._refuse_fork()
        with self._starting:
            self._start()

    def _start(self) -> None:
        page = None
        if self._started is None and self._page_options is not None:
            page = self.page = self._open_page(self._page_options)
        try:
            self._io.start()
        except BaseException:
            if page is not None:
                page.close()
            raise
        self._started = time.monotonic()
        # Imported where a task queue is integrated.
        runs = sys.modules.get("acker.remote.runs")
        if self.jobs is None and runs is not None and runs.INTEGRATED:
            text = "%s: this consumer has no replies=, so messages do not wait for jobs that they send by %s"
            self.logger.warning(text, self.name, ", ".join(sorted(runs.INTEGRATED)))

    def _open_page(self, options: LivePage) -> LiveServer:
        # Without a page nothing of it is imported.
        from acker.connectors.consumer_view import ConsumerView
        from acker.connectors.steps import Steps
        from acker.ui.opening import open_page

        self.steps = Steps()
        arguments = (self.name, self._store, self._options, self.stats, self._timeout_secs, self._calls)
        self._view = ConsumerView(*arguments, self.steps, lambda: self._io.away, values=options.values)
        return open_page(self._view, options)

    def _ensure_started(self) -> None:
        self._refuse_fork()
        with self._starting:
            if self._started is None:
                self._start()

    def _refuse_fork(self) -> None:
        if self.process != os.getpid():
            raise ForkedError("Consumer", self.process, "make a Consumer in each process")

    def stop(self) -> None:
        """Take no new messages: iterations end. Signal handlers may call it."""
        self._refuse_fork()  # a handler that a forked process inherits must not keep that one from its end
        self._io.stop()

    def close(self) -> None:
        """Stop, wait until open messages are done or `drain_secs` are over, and disconnect.

        What is not done goes back to the broker. May be called again.
        """
        if self.process != os.getpid():
            return
        with self._starting:  # else a start on another thread could be missed
            is_started = self._started is not None
        if is_started:
            self._io.stop()
            self._io.join()
            self._calls.warn_of_pools(self.name, self.logger)
            self._trees.tell_repeated_jobs()
        if self._last_pool is not None:
            self._last_pool.shutdown(wait=False, cancel_futures=True)
        if self.page is not None:
            self.page.close()

    def __enter__(self) -> Self:
        self._ensure_started()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._ensure_started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        from acker.connectors.async_handlers import on_thread  # as in `aiter`

        # On another thread, so that coroutines that work for open messages can finish; and not on one of the loop's
        # own, for which calls of user code may have to end first.
        await on_thread(self.close, f"acker {self.name} close")

    # ---- messages ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message[Value]]:
        """Yield messages until `stop`; several threads may iterate.

        Raises
        ------
        SourceError, concurrent.futures.BrokenExecutor
            The source failed for good, or a pool that works for messages did. What is open goes back to the broker.
        """
        self._ensure_started()
        frame = sys._getframe(1)
        return self._messages((frame.f_code, frame.f_lasti))

    def _messages(self, made_in: tuple[CodeType, int] | str) -> Iterator[Message[Value]]:
        self._calls.note_place(made_in)
        store, types = self._store, (MessageTree, Message)
        is_plain = self._decode is None and self.spans is None
        taker_of = self._calls.taker
        return MessageLoop(self, store.ready, store.take, made_in, types, self._complete, is_plain, taker_of)

    def aiter(self) -> AsyncIterator[Message[Value]]:
        """Iterate over messages on an event loop until `stop`; as iteration, which also has the errors.

        Several tasks may share what this returns. A task that is cancelled while it waits takes no message with it.
        """
        self._ensure_started()
        frame = sys._getframe(1)
        return self._async_messages((frame.f_code, frame.f_lasti))

    def _async_messages(self, made_in: tuple[CodeType, int] | str) -> AsyncMessages[Value]:
        # Not before somebody has an event loop: asyncio takes as long to import as the rest of a consumer.
        import asyncio

        from acker.connectors.async_messages import AsyncMessages

        self._calls.note_place(made_in)
        current_task, taker_of = asyncio.current_task, self._calls.taker

        def begin(attempt: Attempt) -> Message[Value] | None:
            message = self._message(attempt, made_in)
            if message is not None:
                taker_of(current_task()).tree = attempt.tree
            return message

        return AsyncMessages(self._store, begin)

    # ---- handlers ----------------------------------------------------------------------------------------------------

    def run(
        self,
        handler: Callable[[Message[Value]], object],
        *,
        threads: int = 8,
        until: Until = "stopped",
        ui: PageChoice = None,
    ) -> ConsumerStats:
        """Give each message to a function, in threads, until SIGTERM, SIGINT or `stop`; then `close`.

        The message is done when the call returns, and what the call has submitted or spawned; it fails when the call
        raises. So many messages are handed out as there are threads. Calls that still run when the time to drain is
        over are left behind, with a warning.

        On another thread than the main one, and where the program has a handler of SIGTERM, signals are left alone: a
        line in the log says so. A second SIGINT raises `KeyboardInterrupt` at once.

        Parameters
        ----------
        handler : callable
            Gets the message, and no other argument.
        threads : int
        until : {"stopped", "empty"}
            "empty": also when no message has come for a second, and none is left in this process, not even one that
            waits for another attempt.
        ui : LivePage, bool, int or str, optional
            In place of that of the consumer.

        Returns
        -------
        ConsumerStats
            The figures of the end.

        Raises
        ------
        ArgumentTypeError, ArgumentValueError
        RuntimeStateError
            The consumer was started before.
        SourceError, concurrent.futures.BrokenExecutor
            As iteration.
        BaseException
            A handler raised what is no `Exception`, such as `SystemExit`. The consumer stops first.
        """
        # Programs with loops of their own need neither of them.
        from acker.connectors.handlers import HandlerThreads, check_handler, place_of
        from acker.connectors.stop_signals import StopSignals

        check_handler(handler, is_async=False)
        workers = HandlerThreads(partial(self._messages, place_of(handler)), handler, threads, self.name)
        self._prepare_run(until, ui)

        def stop() -> None:
            self.stop()
            workers.wake()

        with StopSignals(self.name, stop) as signals:
            self.start()
            try:
                workers.start()
                workers.wait(lambda: self._store.is_closed)
            finally:
                deadline = time.monotonic() + self._options.drain_secs
                if not signals.is_urgent:
                    self.close()
            workers.join(max(deadline, time.monotonic() + _RETURN_SECS))
        return self.stats()

    async def run_async(
        self,
        handler: Callable[[Message[Value]], Coroutine[Any, Any, object]],
        *,
        tasks: int = 100,
        until: Until = "stopped",
        ui: PageChoice = None,
    ) -> ConsumerStats:
        """Give each message to a coroutine of the running loop, at most `tasks` at a time; otherwise as `run`.

        What a handler hands to `spawn` or `submit` goes on after its end and is not counted: `open_max` bounds it.
        When a message times out, its coroutine is cancelled. When this is cancelled, it ends as by `stop`.
        """
        from acker.connectors.async_handlers import HandlerTasks
        from acker.connectors.handlers import check_handler, place_of
        from acker.connectors.loop_watch import LoopWatch
        from acker.connectors.stop_signals import StopSignals

        check_handler(handler, is_async=True)
        check_whole("tasks", tasks)
        self._prepare_run(until, ui)
        with StopSignals(self.name, self.stop), LoopWatch(self.name, self.logger):
            self.start()
            messages = self._async_messages(place_of(handler))
            running = HandlerTasks(messages, handler, tasks, self.name, self.stop)
            async with self:
                try:
                    await running.work()
                finally:
                    deadline = time.monotonic() + self._options.drain_secs
            await running.join(max(deadline - time.monotonic(), _RETURN_SECS))
        return self.stats()

    def _prepare_run(self, until: Until, ui: PageChoice) -> None:
        from acker.connectors.handlers import check_until

        check_until(until)
        if until == "empty":
            self._io.stop_when_empty()
        if ui is not None:
            self._page_options = _page_options(ui)
            if self._page_options is not None:
                self._store.record_failures()

    def _message(self, attempt: Attempt, made_in: tuple[CodeType, int] | str) -> Message[Value] | None:
        """Begin the tree of an attempt; return its message, or None if user code does not get it."""
        if self.process != this_process.id:
            self._refuse_fork()
        return self._complete(self.begin_message(attempt, made_in, MessageTree, Message), attempt)

    def _complete(self, message: Message[Any], attempt: Attempt) -> Message[Value] | None:
        """Return a message that is new, with its value, or None if its body cannot be decoded or nobody wants it."""
        tree = tree_of(message)
        if self.spans is not None:
            tree.span = self.spans.begin(attempt.delivery, attempt.number)
        if attempt.state != "open":  # the broker took it back meanwhile, when it had no tree
            attempt.tree = None
            tree.end_span("taken back by the broker")
            tree.cancel()
        if attempt.job is not None and attempt.job.skip():
            attempt.job = None  # nobody wants a report
            message.ack()
            return None
        if self._decode is not None:
            try:
                message.value = self._decode(message.value)
                if (error := unrun_error("decode", message.value, DECODE_FIX)) is not None:
                    raise error
            except Exception as error:  # noqa: BLE001 - whatever a decoder raises is the message's fault
                tree.is_undecodable = True
                message.fail(f"the body cannot be decoded: {exception_text(error)}", final=True)
                return None
            except BaseException as end:  # of the program: its traceback holds the message until long after the end
                end_by(message, end)
                raise
        return message

    def break_off(self, error: BaseException) -> None:
        """Stop, and let iteration raise this error: work for a message ends the program, or a pool broke."""
        self._io.break_off(error)

    def wake_unlocked(self) -> None:
        """Let the I/O thread look at what handles posted, without taking a lock."""
        self._io.wake_unlocked()

    def run_last(self, work: Callable[[], object], tree: MessageTree) -> None:
        """Run what `Handle.on_done` was given, on a thread, unless the message is over by then."""
        with self._starting:
            if self._last_pool is None:
                self._last_pool = ThreadPoolExecutor(thread_name_prefix=f"acker {self.name} on_done")
        self._last_pool.submit(unless_over, tree, self._last_pool, work, (), {})

    def _end_tree(self, attempt: Attempt) -> None:
        self._trees.over(attempt)

    @property
    def is_stopping(self) -> bool:
        """Whether no more messages are handed out."""
        return self._store.is_closed

    # ---- questions ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many messages are in this process and not settled."""
        return len(self._store)

    def __bool__(self) -> bool:
        return True

    def oldest(self, most: int = 10) -> OpenMessages:
        """Return the messages that are open longest, the oldest first; a notebook shows them as a table."""
        return describe_open(self._store.oldest(most))

    def stats(self) -> ConsumerStats:
        """Return the figures of this moment; `acker.local.prometheus.serve` and other exporters take a consumer too."""
        counts = dataclasses.asdict(self._store.counts)
        counts["revoked"] += self._source.late_acks
        oldest = self._store.oldest()
        busy = self._calls.busy(oldest)
        return ConsumerStats(
            name=self.name,
            source=self._source.name,
            state=self._state,
            uptime_secs=0.0 if self._started is None else time.monotonic() - self._started,
            **counts,
            lost_handles=self._trees.lost,
            undecodable=self._trees.undecodable,
            repeated_jobs=self._trees.repeated_jobs,
            reconnects=self._io.reconnects,
            polls=self._io.polls,
            pending=len(self._store),
            oldest_age_ms=(time.monotonic_ns() - oldest[0].since_ns) // 1_000_000 if oldest else None,
            calls_running=busy.running,
            calls_over=busy.over,
            complete_latency=self._store.latency.snapshot(),
            acker=self._trees.acker_stats(),
        )

    def letters(self, place: Publisher | None = None, **options: Any) -> DeadLetters:
        """Return the dead letters of this consumer, to list, publish again or drop. It need not run.

        Parameters
        ----------
        place : Publisher, optional
            Where they lie; by default `dead_letters`.
        **options
            Those of `DeadLetters`.

        Raises
        ------
        ArgumentValueError
            There is no `place`, and `dead_letters` is no publisher.
        """
        from acker.connectors.letters import DeadLetters

        place = self._options.publisher if place is None else place
        if place is None:
            raise ArgumentValueError(
                f"{self.name}: dead_letters is {self._options.dead_letters!r}, and no publisher: give a publisher that"
                " leads to where the letters are"
            )
        return DeadLetters(place, source=self._source, **options)

    def health(self) -> ConsumerHealth:
        """Return whether this consumer can do its work, for the health check of a service; any thread may ask."""
        state, error = self._state, self._store.error
        if self.process != this_process.id:
            text = f"it belongs to process {self.process}, from which this one was forked: make one in each process"
            return ConsumerHealth(False, state, text)
        if error is not None:
            return ConsumerHealth(False, state, f"it ended: {exception_text(error)}")
        if state in {"new", "stopped"}:
            return ConsumerHealth(False, state, "it was not started" if state == "new" else "it was stopped")
        silent_secs = time.monotonic() - self._io.turned_at
        if silent_secs > _SILENT_SECS_MAX:
            text = f"its I/O thread has been in one call of the broker's client for {silent_secs:.0f} s"
            return ConsumerHealth(False, state, text)
        away = self._io.away
        text = "all is well" if away is None else f"no connection for {time.monotonic() - away[0]:.0f} s: {away[1]}"
        return ConsumerHealth(True, state, text)

    @property
    def _state(self) -> RuntimeState:
        if self._started is None:
            return "new"
        if not self._io.is_alive:
            return "stopped"
        return "draining" if self._io.is_stopping else "running"

    def __repr__(self) -> str:
        return f"<Consumer of {self._source.name}, {self._state}, {len(self)} messages>"

    def _repr_html_(self) -> str:
        from html import escape

        told = f"{self._headline()} {self!r}"
        return f"<p>{escape(told)}</p>{self.stats()._repr_html_()}{self.oldest()._repr_html_()}"

    def _headline(self) -> str:
        """Return the sentence of the live page, or the same of the figures since the start if there is none."""
        if self._view is not None:
            return str(self._view.view()["headline"]["text"])
        from acker.observe.headline import Situation, headline

        stats, attempts, error = self.stats(), self._store.oldest(), self._store.error
        late_ns = time.monotonic_ns() - round(self._timeout_secs * 1e9) // 2
        situation = Situation(
            stats.state,
            error=None if error is None else exception_text(error).rstrip("."),
            stuck=sum(attempt.since_ns <= late_ns for attempt in attempts),
            oldest_ms=stats.oldest_age_ms,
            pending=stats.pending,
            acked_a_second=stats.acked / (stats.uptime_secs or 1.0),
            p99_ms=stats.complete_latency.quantile_ms(0.99),
            busy=self._calls.busy(attempts),
            noun="message",
        )
        return str(headline(situation)["text"])


def _check_source(source: Any, decode: Any) -> None:
    if not isinstance(source, Source):
        raise no_source_error(source)
    if _is_type(decode):
        return
    if decode is not None and not callable(decode):
        raise ArgumentTypeError(f"decode: expected a callable, got {decode!r}")
    refuse_unrun("decode", decode, DECODE_FIX)


def _is_type(decode: Any) -> bool:
    """Return whether this is a class, or a type such as list[Order]."""
    return isinstance(decode, type) or get_origin(decode) is not None


# What few programs need is imported when one does.


def _order_of(source: Source, key: KeyOf | str | None, open_max_per_key: int | None) -> KeyOrder | None:
    if key is None and not source.keeps_order:
        return None
    from acker.connectors.order import order_of

    return order_of(source, key, open_max_per_key)


def _pace_of(rate_max: float) -> Pace:
    from acker.connectors.order import pace_of

    return pace_of(rate_max)


def _page_options(ui: PageChoice) -> LivePage | None:
    from acker.ui.options import live_page_of

    return live_page_of(ui)


def _decoder_of(kind: Any) -> Callable[[bytes], Any]:
    from acker.connectors.decoding import decoder_of

    return decoder_of(kind)


def _jobs_of(replies: Replies | None, follow: Replies | None, name: str) -> tuple[Jobs | None, Reporter | None]:
    if replies is None and follow is None:
        return None, None
    from acker.connectors.jobs import Jobs
    from acker.connectors.reports import Reporter
    from acker.remote.replies import Replies

    given: dict[str, object] = {"replies": replies, "follow": follow}
    for option, value in given.items():
        if value is not None and not isinstance(value, Replies):
            # Without the value, which may be a URL with a password.
            text = f"{option}: expected Replies, such as RedisReplies(url), got {type(value).__name__}"
            raise ArgumentTypeError(text)
    reporter = None if follow is None else Reporter(follow, name)
    return Jobs(replies, reporter), reporter


def _spans_of(provider: TracerProvider, source: Source) -> Spans:
    from acker.connectors.tracing import Spans

    return Spans(provider, source.name, type(source).__module__)
