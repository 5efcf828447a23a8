"""taskiq: tasks that a message or another task sends carry tokens, and report before their results are saved."""

from __future__ import annotations

import asyncio
import itertools
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from acker.errors import ArgumentTypeError, ArgumentValueError, RuntimeStateError
from acker.remote.jobs import Part
from acker.remote.replies import Replies
from acker.remote.runs import Runs, sending

try:
    import taskiq
    from taskiq.abc.formatter import TaskiqFormatter
    from taskiq.exceptions import NoResultError
except ImportError as error:
    raise ImportError("acker.remote.taskiq needs taskiq: pip install 'acker[taskiq]'") from error

__all__ = ["install"]

_LABEL: Final = "acker"


def install(broker: taskiq.AsyncBroker, replies: Replies, *, unattributed: str = "raise") -> None:
    """Let tasks of a broker that work for a message be awaited by it, and what they send as well.

    Call it once in each process: where messages are consumed, and in the module of the workers' broker. Call it when
    the broker has its middleware and its formatter, since it has to be the first.

    Parameters
    ----------
    broker : taskiq.AsyncBroker
    replies : Replies
        To the same server everywhere. taskiq has no way to skip a task, so `skip_gone` is refused.
    unattributed : {"raise", "ignore"}
        What a worker does when a thread sends of which nothing says for which running task it does so: raise
        `UnattributedError` in place of the send, or send it, and nobody awaits it.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    RuntimeStateError
        It was called before for this broker.
    """
    if not isinstance(broker, taskiq.AsyncBroker):
        raise ArgumentTypeError(f"broker: expected a taskiq.AsyncBroker, got {type(broker).__name__}")
    runs = Runs(replies, "taskiq.", unattributed)
    if replies.skip_gone:
        raise ArgumentValueError("replies: taskiq cannot skip tasks, so give it replies without skip_gone")
    if isinstance(broker.formatter, _TokenFormatter):
        raise RuntimeStateError(f"install was called before for {broker!r}")
    ends = _TaskEnds(runs)
    ends.set_broker(broker)
    broker.middlewares.insert(0, ends)
    broker.formatter = _TokenFormatter(broker, runs, ends)
    vars(broker)["kick"] = _Kick(broker.kick, runs)


class _TaskEnds(taskiq.TaskiqMiddleware):
    """The tasks that run in this process, and how they end.

    It is the first one: so it begins before all others, and knows the end after all of them, when retries have been
    sent. taskiq acks a message when its result is saved, by default: a worker that is killed before repeats it.
    """

    def __init__(self, runs: Runs) -> None:
        super().__init__()
        self._runs = runs
        self._numbers = itertools.count()
        self._number: ContextVar[int] = ContextVar("acker run of taskiq", default=-1)
        self._before: dict[int, int] = {}
        # The messages that run, by their parts; without those that have sent themselves again, as a retry does.
        self._running: dict[Part, str] = {}
        self._without_result: set[int] = set()
        self._threads: ThreadPoolExecutor | None = None

    def startup(self) -> None:
        if self.broker.middlewares[0] is not self:
            raise RuntimeStateError(
                f"acker.remote.taskiq has to be the first middleware, and {self.broker.middlewares[0]!r} is: call"
                " install after the middleware is added"
            )
        if not isinstance(self.broker.formatter, _TokenFormatter):
            raise RuntimeStateError("acker.remote.taskiq needs its formatter: call install after with_formatter")
        self._runs.main_sends_for_nobody = not self.broker.is_worker_process

    def pre_execute(self, message: taskiq.TaskiqMessage) -> taskiq.TaskiqMessage:
        number = next(self._numbers)
        self._before[number] = self._number.get()
        self._number.set(number)
        run = self._runs.begin(number, _token_in(message), message.task_name)
        if run.job is not None:
            self._running[run.job] = message.task_id
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda _: self._abandon(number))
        return message

    def on_error(
        self, message: taskiq.TaskiqMessage, result: taskiq.TaskiqResult[Any], exception: BaseException
    ) -> None:
        # Of the task itself. A retry sets this error too, and one by a schedule source sends nothing that is awaited.
        if isinstance(exception, NoResultError):
            self._without_result.add(self._number.get())

    async def post_execute(self, message: taskiq.TaskiqMessage, result: taskiq.TaskiqResult[Any]) -> None:
        number = self._number.get()
        wants_no_result = number in self._without_result
        self._without_result.discard(number)
        run = self._runs.end(number)
        self._number.set(self._before.pop(number, -1))
        if run is None or run.job is None:
            return
        has_retry = self._running.pop(run.job, None) is None
        has_failed = result.is_err and not has_retry and not wants_no_result
        report = partial(run.job.finish, (result.error or "it failed") if has_failed else None)
        # Not on the loop, since a report waits for the server; nor in its threads, which tasks may all be using.
        self._threads = self._threads or ThreadPoolExecutor(thread_name_prefix="acker reports of taskiq")
        await asyncio.get_running_loop().run_in_executor(self._threads, report)

    def shutdown(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    def note_sent(self, part: Part, task_id: str) -> None:
        """Note that a part has sent a message: if it is its own, as a retry is, the end of the run is no failure."""
        if self._running.get(part) == task_id:
            del self._running[part]

    def _abandon(self, number: int) -> None:
        """End a run that has no end of its own: another middleware raised, or the worker stops."""
        self._before.pop(number, None)
        run = self._runs.end(number)
        if run is not None and run.job is not None:
            self._running.pop(run.job, None)
            run.job.abandon()


class _TokenFormatter(TaskiqFormatter):
    """Writes and reads the messages of a broker: it gives those that somebody awaits a token.

    It comes after all middleware that could refuse a message, and has what a middleware does not see: messages that
    cannot be written, and those whose task the worker does not know.
    """

    def __init__(self, broker: taskiq.AsyncBroker, runs: Runs, ends: _TaskEnds) -> None:
        self._formatter = broker.formatter
        self._broker = broker
        self._runs = runs
        self._ends = ends

    def dumps(self, message: taskiq.TaskiqMessage) -> taskiq.BrokerMessage:
        old = _token_in(message)
        part = self._runs.sender(message.task_name, is_awaited=old is not None)
        token = self._runs.token(part, old, message.task_name)
        # A copy, as one message may be sent twice, and each time has a token of its own.
        labels = {name: value for name, value in message.labels.items() if name != _LABEL}
        copy = message.model_copy(update={"labels": labels if token is None else {**labels, _LABEL: token}})
        with sending(part, message.task_name):
            written = self._formatter.dumps(copy)
        if part is not None:
            self._ends.note_sent(part, message.task_id)
        return written

    def loads(self, message: bytes) -> taskiq.TaskiqMessage:
        found = self._formatter.loads(message)
        token = _token_in(found)
        if token is not None and self._broker.find_task(found.task_name) is None:
            why = "the worker knows no task of this name"
            asyncio.get_running_loop().run_in_executor(None, self._runs.fail, token, found.task_name, why)
        return found


class _Kick:
    """Sends the messages of a broker, and fails the tree of one that cannot be sent."""

    def __init__(self, kick: Any, runs: Runs) -> None:
        self._kick = kick
        self._runs = runs

    async def __call__(self, message: taskiq.BrokerMessage) -> None:
        is_awaited = _LABEL in message.labels
        part = self._runs.sender(message.task_name, is_awaited=True) if is_awaited else None
        with sending(part, message.task_name):
            await self._kick(message)


def _token_in(message: taskiq.TaskiqMessage) -> str | None:
    found = message.labels.get(_LABEL)
    return None if found is None else str(found)
