"""Handles: a message and its children, each of which ends once, from any thread."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Never, TypeVar

from acker._handles import HandleBase, TreeBase, TreeOwner, handle_variable, this_process, unless_over
from acker.connectors.attempts import Attempt, log_fields
from acker.connectors.calls import enter_tree, line_at
from acker.connectors.options import FinalErrors, check_secs
from acker.connectors.unrun import name_of, refuse_unrun, unrun_error
from acker.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    ForkedError,
    RuntimeStateError,
    TupleStateError,
    exception_text,
)
from acker.observe.reasons import PROGRAM_ENDS, reason_line, reason_text

if TYPE_CHECKING:
    import asyncio

    from acker.connectors.jobs import Jobs
    from acker.connectors.steps import Steps
    from acker.connectors.tracing import Spans
    from acker.remote.ledger import OpenJob
    from acker.remote.replies import RemoteTree

_STACK_FRAMES: Final = 16
# What to do with a coroutine in the place of a plain call.
_SPAWN: Final = "no pool runs it, so use message.spawn on an event loop"
_RUN_ASYNC: Final = "run does not await it, so make the handler an async def, for Consumer.run_async"
_PLAIN: Final = "nobody awaits it, so give a plain function"

T = TypeVar("T")
# What `decode` returns.
Value = TypeVar("Value")


class Owner(TreeOwner):
    """What handles need of a consumer."""

    logger: logging.Logger
    source_name: str
    jobs: Jobs | None
    final_errors: FinalErrors
    spans: Spans | None
    steps: Steps | None
    lock: threading.Lock  # for what few trees have: coroutines, and jobs in other processes

    @property
    def is_stopping(self) -> bool:
        """Whether no more messages are handed out."""
        raise NotImplementedError

    def wake_unlocked(self) -> None:
        """Let the acker look at what was posted, without taking a lock."""
        raise NotImplementedError

    def break_off(self, error: BaseException) -> None:
        """Stop: a pool that works for messages is broken, or work for a message ends the program."""
        raise NotImplementedError

    def run_last(self, work: Callable[[], object], tree: MessageTree) -> None:
        """Run the last work for a message on a thread of the consumer."""
        raise NotImplementedError


class MessageTree(TreeBase):
    """Everything that derives from one attempt at a message.

    Attributes
    ----------
    owner : Owner
    attempt : Attempt
    root_id : int
    parts : int
        Number of handles that have not ended: the message and its children.
    is_failed : bool
        Whether one of them has failed.
    reason, line : str or None
        Of the first failure, and the line of user code that it came from.
    is_final : bool
        Whether no further attempt can succeed, as its first failure says.
    is_undecodable : bool
    retry_secs : float or None
        How long the next attempt waits, as its first failure says.
    goes_back : bool
        Whether its failure is none of the message: a pool broke, or the program ends. The attempt does not count.
    span : opentelemetry.trace.Span or None
        That of this attempt, if the consumer traces with OpenTelemetry.
    lost : str or None
        Where a handle was made that was garbage-collected without an end.
    last_work : tuple of pairs or None
        What `on_done` was given, each with where that was.
    remote : RemoteTree or None
        Its jobs in other processes.
    handles : dict or None
        Where the handles were made that have not ended, by tuple id, while the owner traces.
    """

    owner: Owner
    attempt: Attempt
    span: Any
    remote: RemoteTree | None
    # Of the class, until a message needs another value: most never do, and one is made for each message.
    reason: str | None = None
    line: str | None = None
    retry_secs: float | None = None
    is_final = is_undecodable = goes_back = False
    lost: str | None = None
    # The coroutines that work for it, each with its loop.
    tasks: dict[asyncio.Task[Any], asyncio.AbstractEventLoop] | None = None
    is_cancelled = False

    def fail(self, reason: str) -> None:
        """Fail it from outside of its parts."""
        if self.begin_failure():
            self.reason = reason
            self.post_failure()

    def open_jobs(self, most: int) -> list[OpenJob]:
        """Return its jobs in other processes that are open, those first that have been so for longest."""
        return [] if self.remote is None else self.remote.missing(most)

    def forget_jobs(self) -> None:
        """Await no jobs any more: the message is over."""
        if self.remote is not None:
            self.remote.close()

    def cancel(self) -> None:
        """Cancel its coroutines, from any thread, and those that are still to come."""
        self.forget_jobs()
        with self.owner.lock:
            self.is_cancelled = True
            tasks = (self.tasks or {}).copy()
        for task, loop in tasks.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
                loop.call_soon_threadsafe(task.cancel)

    def end_span(self, failure: str | None) -> None:
        """End the span of this attempt, if it has one; None: it was acked."""
        if self.span is not None:
            from acker.connectors.tracing import end

            end(self.span, failure)

    def hold(self, task: asyncio.Task[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Keep a coroutine, as a loop holds its tasks weakly; cancel it if the tree is over."""
        with self.owner.lock:
            if self.tasks is None:
                self.tasks = {}
            self.tasks[task] = loop
            is_late = self.is_cancelled
        if is_late:
            task.cancel()


def line_text(made_in: tuple[CodeType, int] | str) -> str:
    """Return the file and the line of an instruction as text, or a stack as it is."""
    if isinstance(made_in, str):
        return made_in
    line = line_at(*made_in)
    return f"{line.file}:{line.line}"


def stack_of(frame: FrameType) -> str:
    """Return the stack of a frame as text."""
    return "\n" + "".join(traceback.format_stack(frame, _STACK_FRAMES))


class Handle(HandleBase):
    """A part of the work for a message: the message itself, or a child.

    It is done after `ack`, or at the end of a ``with`` block without an exception; the message is acked when all its
    parts are done. `fail`, or an exception in the block, fails the whole message at once. The exception is logged and
    goes no further, so that a loop over messages continues with the next one. `KeyboardInterrupt`, `SystemExit` and
    `GeneratorExit` do go further, and are no failure: the attempt does not count. Nor does one that is cancelled while
    its consumer stops.

    Any thread may use a handle, one `ack` or `fail` ends it, and a handle that is garbage-collected without an end
    fails its message.
    """

    # ---- children ----------------------------------------------------------------------------------------------------

    _tree: MessageTree
    _is_ended: bool
    _child_type: ClassVar[type[Child]]
    _child: Callable[[FrameType], Child]  # type: ignore[assignment]  # a method of the native half
    _leave: Callable[[], None]
    # So that their documentation is here.
    child = HandleBase.child
    submit = HandleBase.submit

    _stack_of = staticmethod(stack_of)

    @staticmethod
    def _refuse_unrun(work: Any) -> None:
        """Refuse what a pool cannot run, as the first argument of work whose pool was left out."""
        if not callable(work):
            raise ArgumentTypeError(
                f"submit: expected a pool and a callable, got {type(work).__name__} for the callable: write"
                " message.submit(pool, work, *args), with a pool such as ThreadPoolExecutor(8)"
            )
        refuse_unrun("submit", work, _SPAWN)

    def _refuse_ended(self) -> Never:
        raise TupleStateError(
            f"{self!r} has ended, so the message may be acked already: make children before ack, fail, or the end of"
            " the block"
        )

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine on the running event loop: a child that ends with it.

        The child is acked when the coroutine returns, and fails the message when it raises or is cancelled. On a
        message outside a ``with`` block, the coroutine is the message's own part, and not a child; so there may be one
        such call. In a coroutine that was spawned, `spawn` and `submit` make children of that coroutine's part. When
        the message fails or times out, its coroutines are cancelled.

        Raises
        ------
        ArgumentTypeError
            It is no coroutine.
        TupleStateError
            As `submit`.
        RuntimeStateError
            No event loop runs here, as in a plain handler; the message fails.
        """
        if not isinstance(work, Coroutine):
            raise ArgumentTypeError(f"spawn: expected a coroutine, such as work(message), got {type(work).__name__}")
        try:
            part = self._part(sys._getframe(1))
        except BaseException:
            work.close()
            raise
        return part._start(work)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine on the running loop, which ends this handle."""
        context = contextvars.copy_context()
        context.run(handle_variable.set, self)
        context.run(enter_tree, self._tree)
        if (jobs := self._tree.owner.jobs) is not None:
            context.run(jobs.enter, self, self._tree)
        name = name_of(work)
        if self._tree.span is not None:
            work = _traced(self._tree, work)
        try:
            loop = _running_loop()
            task = loop.create_task(work, context=context)
        except BaseException as error:
            work.close()
            self._end(exception_text(error))
            raise
        self._tree.hold(task, loop)
        task.add_done_callback(partial(self._end_as_task, name))
        return task

    def _part(self, frame: FrameType) -> Handle:
        """Return the handle that a call or a coroutine has to end."""
        self._refuse_fork()
        current: Handle | None = handle_variable.get()
        if current is not None and current._tree is self._tree and not current._is_ended:
            return current._child(frame)
        if self._is_entered or isinstance(self, Child):
            return self._child(frame)
        is_first, is_sibling = self._hand_over()
        if is_first:
            return self
        if is_sibling:
            # The first call may end before this one begins, and the message would be acked without this part.
            error = TupleStateError(f"{self!r}: enter its block before you call submit or spawn more than once")
            self._end(exception_text(error))
            raise error
        return self._child(frame)

    def _end_as_task(self, name: str, task: asyncio.Task[Any]) -> None:
        if self._tree.tasks:
            self._tree.tasks.pop(task, None)
        self._end_as(name, task)

    def _end_of(self, work: Callable[..., Any]) -> Callable[[Future[Any]], None]:
        """Return what ends this as a call of some work has ended; it keeps no argument, which may be large."""
        return partial(self._end_as, name_of(work))

    def _end_as(self, name: str, future: Future[Any] | asyncio.Task[Any]) -> None:
        """End as a call or a coroutine has ended."""
        error: BaseException | None
        try:
            error = unrun_error("the call", future.result(), _SPAWN)
        except BaseException as raised:  # noqa: BLE001 - it fails the message
            error = raised
        if error is None:
            self._end(None)
            return
        if isinstance(error, PROGRAM_ENDS):
            # Nothing else tells the program of it.
            self._tree.owner.break_off(error)
        self._end_by(error, is_logged=self.alive and not self._goes_back(error), name=name)

    def _end_by(self, error: BaseException, *, is_logged: bool, name: str | None = None) -> None:
        """End by an exception of some work, which fails the message unless that is not its fault."""
        tree = self._tree
        if isinstance(error, BrokenExecutor) and not self._is_ended and not tree.is_failed:
            tree.owner.break_off(error)
        elif self._is_ended and not tree.is_failed and isinstance(error, Exception):
            self._log_late(error)
        elif is_logged:
            self._log(error, name)
        is_final, goes_back = tree.owner.final_errors.has(error), self._goes_back(error)
        self._end(exception_text(error), reason_line(error), is_final=is_final, goes_back=goes_back)

    def _goes_back(self, error: BaseException) -> bool:
        """Return whether an exception is none of the message: a pool broke, or the program ends.

        So does a cancellation while the consumer stops.
        A coroutine that is cancelled from outside of the block looks the same whether the program ends or a timeout
        around the block is over. If the message is handed out again, and that comes again, the program has not ended.
        """
        if isinstance(error, (*PROGRAM_ENDS, BrokenExecutor)):
            return True
        if not _is_cancellation(error):
            return False
        tree = self._tree
        return tree.owner.is_stopping or (not tree.attempt.went_back and _is_cancelled_from_outside())

    # ---- jobs in other processes -------------------------------------------------------------------------------------

    def token(self, name: str = "") -> str:
        """Return the token of a job in another process: a child that ends when that job reports, and all it led to.

        Give each job a token of its own. `acker.remote.job` takes it there.

        Parameters
        ----------
        name : str
            For people: `Consumer.oldest` and timeouts name open jobs.

        Raises
        ------
        TupleStateError
            This handle has ended.
        RuntimeStateError
            The consumer has neither `replies` nor, with a token in this message, `follow`.
        ConnectionLostError
            The server of the replies cannot be reached.
        JobsError
            The message has too many jobs, and fails.
        """
        self._refuse_fork()
        tree, frame = self._tree, sys._getframe(1)
        jobs = tree.owner.jobs
        if jobs is None:
            raise RuntimeStateError(f"{self!r}: tokens need a Consumer with replies=, such as RedisReplies(url)")
        if self._is_ended:
            raise TupleStateError(f"{self!r} has ended, so the message may be acked already: take tokens before")
        return jobs.token(tree, name, lambda: self._child(frame))

    def not_sent(self, reason: str) -> None:
        """Fail the message, since a job may not have been sent for which this handle made a token."""
        tree = self._tree
        if tree.owner.jobs is not None and tree.owner.jobs.not_sent(tree, reason):
            tree.fail(reason)

    # ---- ends --------------------------------------------------------------------------------------------------------

    def on_done(self, work: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
        """Run something when all parts of the message are done, before it is acked.

        It runs on a thread of the consumer, in the order of these calls, and within the timeout of the message. If it
        raises, the attempt fails. It runs again with each further attempt, also after a crash between it and the ack:
        so its effects have to be safe to repeat. What it sends through `current` is awaited too.

        Parameters
        ----------
        work : callable
        *args, **kwargs
            Its arguments.

        Raises
        ------
        TupleStateError
            This handle has ended.
        """
        if not callable(work):
            raise ArgumentTypeError(f"on_done: expected a callable, got {work!r}")
        refuse_unrun("on_done", work, _PLAIN)
        self._refuse_fork()
        frame = sys._getframe(1)
        made_in = stack_of(frame) if self._tree.owner.trace else (frame.f_code, frame.f_lasti)
        if not self._add_last_work((made_in, partial(work, *args, **kwargs))):
            raise TupleStateError(f"{self!r} has ended, so the message may be acked already: call on_done before")

    def ack(self) -> None:
        """End this part of the work: it is done.

        Raises
        ------
        TupleStateError
            It has ended before, or a call or coroutine will end it.
        ForkedError
            This is a forked process; only the one that received the message can end it.
        """
        self._refuse_if_handed_over()
        self._end_once(None)

    def fail(self, reason: object = None, *, final: bool = False, retry_in: float | None = None) -> None:
        """End this part, and fail the message. Of several failures, the first counts.

        Parameters
        ----------
        reason : str or exception, optional
            For logs and dead letters. By default it names the line of this call.
        final : bool
            No further attempt can succeed: the message becomes a dead letter. So it does if `reason` is an exception
            that `Consumer` takes for final.
        retry_in : float, optional
            Seconds to the next attempt, in place of the back-off.

        Raises
        ------
        TupleStateError
            It has ended before.
        ArgumentTypeError, ArgumentValueError
            `retry_in` is no time, or contradicts `final`.
        """
        if retry_in is not None:
            check_secs("retry_in", retry_in)
            if final:
                raise ArgumentValueError("retry_in: a final failure has no further attempt; leave out one of the two")
        is_final = final or (isinstance(reason, BaseException) and self._tree.owner.final_errors.has(reason))
        is_final = is_final and retry_in is None
        self._end_once(reason_text(reason), reason_line(reason), is_final=is_final, retry_secs=retry_in)

    def _refuse_fork(self) -> None:
        """Refuse the call in a forked process, whose acker is a copy: nothing that it does there counts."""
        process = self._tree.owner.process
        if process != this_process.id:
            raise ForkedError("message", process, "use it in the process that got it")

    def _refuse_if_handed_over(self) -> None:
        if self._is_handed_over:
            raise TupleStateError(
                f"{self!r}: a call of submit or spawn has taken it, and ends it; enter its block before such calls"
            )

    def _end_once(
        self, reason: str | None, line: str | None = None, *, is_final: bool = False, retry_secs: float | None = None
    ) -> None:
        if not self._end(reason, line, is_final=is_final, retry_secs=retry_secs):
            raise TupleStateError(f"{self!r} has ended before: a handle is acked or failed once")

    def _end(
        self,
        reason: str | None,
        line: str | None = None,
        *,
        is_final: bool = False,
        retry_secs: float | None = None,
        goes_back: bool = False,
    ) -> bool:
        """End, if it has not ended yet; return whether that was so."""
        if reason is None:
            return self._end_done()
        was_open, is_first = self._end_failed()
        if is_first:
            tree = self._tree
            tree.reason, tree.line = reason, line
            tree.is_final, tree.retry_secs, tree.goes_back = is_final, retry_secs, goes_back
            if tree.alive:
                tree.post_failure()
        return was_open

    def _run_last(self) -> None:
        """Run what `on_done` was given, as this part."""
        tree = self._tree
        work = tree.take_last_work()

        def run() -> None:
            with self, _breaks_off(tree.owner):
                for made_in, each in work:
                    self._made_in = made_in
                    if (error := unrun_error("the work of on_done", each(), _PLAIN)) is not None:
                        raise error

        try:
            tree.owner.run_last(run, tree)
        except RuntimeError as error:  # The interpreter ends, and takes no work any more.
            self._end(exception_text(error))

    def reset_timeout(self) -> None:
        """Give the message its whole timeout again, for work that takes long and makes progress.

        If it is a job of a tree elsewhere, so has that one.
        """
        self._refuse_fork()
        if self.alive:
            self._tree.reset_timeout()
            if (jobs := self._tree.owner.jobs) is not None:
                jobs.reset_timeout(self._tree)

    @property
    def alive(self) -> bool:
        """Whether the outcome of the message still counts.

        False when it is acked, failed or timed out, or when the broker took it back. Work for it can stop then: the
        broker delivers the message again, or has its ack.
        """
        return self._tree.alive

    def _exit_by(self, error: BaseException) -> bool:
        """Leave a block by an exception; return whether it goes no further."""
        is_ordinary = isinstance(error, Exception) or _is_cancelled_wait(error)
        self._end_by(error, is_logged=is_ordinary and not self._is_ended)
        return is_ordinary

    def _log(self, error: BaseException, name: str | None) -> None:
        attempt = self._tree.attempt
        text = "attempt %d of %s failed in %s"
        owner = self._tree.owner
        where = self.made_in if name is None else f"{name} ({self.made_in})"  # a helper has one line for all calls
        extra = log_fields(attempt, owner.source_name, exception_text(error))
        owner.logger.warning(text, attempt.number, attempt.delivery.key, where, exc_info=error, extra=extra)

    def _log_late(self, error: Exception) -> None:
        """Tell of an exception that changes nothing any more, since its part was acked before."""
        attempt, owner = self._tree.attempt, self._tree.owner
        found = exception_text(error)
        owner.logger.error(
            "%s was acked before its handler raised %s, in %s: no attempt follows, so call ack last",
            f"{'a part of ' if isinstance(self, Child) else ''}{attempt.delivery.key}",
            found,
            reason_line(error) or self.made_in,
            exc_info=error,
            extra=log_fields(attempt, owner.source_name, found),
        )

    @property
    def made_in(self) -> str:
        """Where this handle was made: a file and a line, or the stack if the consumer traces."""
        return line_text(self._made_in)

    def _lose(self) -> None:
        """Fail the message: nobody can end this any more. For its destructor."""
        tree = self._tree
        tree.lost = self.made_in
        if tree.begin_failure():
            tree.reason = f"a handle was garbage-collected, and nothing acked or failed it; made in {self.made_in}"
        tree.post_failure_quietly()
        tree.owner.wake_unlocked()

    def __repr__(self) -> str:
        attempt = self._tree.attempt
        state = "ended" if self._is_ended else "open" if self.alive else "over"
        return f"<{type(self).__name__} of {attempt.delivery.key}, attempt {attempt.number}, {state}>"

    def __reduce__(self) -> Never:
        raise ArgumentTypeError(
            f"{self!r}: a handle stays in its process; submit work with plain arguments, such as"
            " message.submit(pool, work, message.value)"
        )


class Child(Handle):
    """A part of the work for a message. `message` is the message."""

    @property
    def key(self) -> str:
        """The key of the message."""
        return self._tree.attempt.delivery.key


Handle._child_type = Child


class Message(Handle, Generic[Value]):
    """A message of a broker, and the first handle of its tree.

    Attributes
    ----------
    value : Value
        The body: bytes, or what `decode` made of them.
    """

    __slots__ = ("value",)

    value: Value

    @property
    def key(self) -> str:
        """Names the message for people, such as ``orders/3@17``."""
        return self._tree.attempt.delivery.key

    @property
    def headers(self) -> Mapping[str, Any]:
        """The headers, as the client gives them."""
        return self._tree.attempt.delivery.headers

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1, as far as broker and consumer know."""
        return self._tree.attempt.number

    @property
    def raw(self) -> Any:
        """The client's own object."""
        return self._tree.attempt.delivery.raw


def tree_of(message: Message[Any]) -> MessageTree:
    """Return the tree of a message."""
    return message._tree


def end_by(message: Message[Any], error: BaseException) -> None:
    """End a message that nobody has got by an exception, which its caller raises."""
    message._end_by(error, is_logged=False)


def call_handler(message: Message[Any], handler: Callable[[Message[Any]], object], pool: object) -> None:
    """Give a message to a handler on this thread, one of `pool`; the end of the call ends the message."""
    with message, _breaks_off(message._tree.owner):
        if message.alive:
            result = unless_over(message._tree, pool, handler, (message,), {})
            if (error := unrun_error("the handler", result, _RUN_ASYNC)) is not None:
                raise error


class _breaks_off:  # noqa: N801 - as contextlib's, which take longer
    """Let work that ends the program end its consumer, before somebody takes the message again."""

    __slots__ = ("_owner",)

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, PROGRAM_ENDS):
            self._owner.break_off(error)


def start_handler(
    message: Message[Any], handler: Callable[[Message[Any]], Coroutine[Any, Any, object]]
) -> asyncio.Task[object]:
    """Give a message to a coroutine on the running loop; its end ends the message.

    Raises
    ------
    Exception
        The call raised it, and so failed the message.
    """
    message.__enter__()  # so that its `submit` and `spawn` make children
    try:
        return message._start(handler(message))
    except BaseException as error:
        message._end_by(error, is_logged=True)
        raise
    finally:
        message._leave()  # the coroutine has a context of its own


def _running_loop() -> asyncio.AbstractEventLoop:
    import asyncio  # not before somebody has a coroutine: it takes as long to import as the rest of a consumer

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeStateError(
            "spawn: no running event loop: make the handler an async def, for Consumer.run_async, or give a plain"
            " function to message.submit(pool, work, *args)"
        ) from None


def _traced(tree: MessageTree, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    spans = tree.owner.spans
    return work if spans is None else spans.coroutine(tree.span, work)


def _is_cancellation(error: BaseException) -> bool:
    if isinstance(error, Exception):
        return isinstance(error, CancelledError)
    import asyncio

    return isinstance(error, asyncio.CancelledError)


def _is_cancelled_wait(error: BaseException) -> bool:
    """Return whether plain code waited for something that was cancelled: only event loops cancel the code itself."""
    if not _is_cancellation(error):
        return False
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _is_cancelled_from_outside() -> bool:
    """Return whether somebody has cancelled the coroutine that runs, and not only what it awaits."""
    import asyncio

    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs
        return False
    return task is not None and task.cancelling() > 0
