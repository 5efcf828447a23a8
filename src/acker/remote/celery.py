"""Celery: tasks that a message or another task sends carry tokens, and report when they are done."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import Any, Final

from acker.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    RuntimeStateError,
    TokenError,
    UnattributedError,
    exception_text,
)
from acker.remote.jobs import DETACHED, Job, Part, current, job, set_current
from acker.remote.replies import Quiet, Replies

try:
    import celery
    from celery import signals, states
    from celery.exceptions import Reject
except ImportError as error:
    raise ImportError("acker.remote.celery needs Celery: pip install 'acker[celery]'") from error

__all__ = ["install"]

log: Final = logging.getLogger("acker.remote")
_HEADER: Final = "acker"
_SENDER: Final = "send_task_message"


def install(app: celery.Celery, replies: Replies, *, unattributed: str = "raise") -> None:
    """Let tasks of an app that work for a message be awaited by it, and what they send as well.

    Call it once in each process: where messages are consumed, and in the module of the workers' app.

    Parameters
    ----------
    app : celery.Celery
    replies : Replies
        To the same server everywhere.
    unattributed : {"raise", "ignore"}
        What a worker does when a thread sends a task of which nothing says for which running task it does so: raise
        `UnattributedError` in place of the send, or send it, and nobody awaits it.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    RuntimeStateError
        It was called before for this app.
    """
    if not isinstance(app, celery.Celery):
        raise ArgumentTypeError(f"app: expected a celery.Celery, got {type(app).__name__}")
    if not isinstance(replies, Replies):
        raise ArgumentTypeError(f"replies: expected Replies, such as RedisReplies(url), got {type(replies).__name__}")
    if unattributed not in ("raise", "ignore"):
        raise ArgumentValueError(f"unattributed: expected 'raise' or 'ignore', got {unattributed!r}")
    if isinstance(vars(app.amqp).get(_SENDER), _Sender):
        raise RuntimeStateError(f"install was called before for {app!r}")
    runs = _Runs(app, replies)
    vars(app.amqp)[_SENDER] = _Sender(app.amqp, runs, is_strict=unattributed == "raise")
    # The app holds them; Celery's signals belong to the process.
    for signal in (
        signals.task_received,
        signals.task_prerun,
        signals.task_postrun,
        signals.task_failure,
        signals.task_revoked,
        signals.task_unknown,
        signals.task_rejected,
    ):
        signal.connect(getattr(runs, signal.name), weak=False)


class _Run:
    """A task that runs in this process; without a job if nobody awaits it."""

    __slots__ = ("before", "is_replaced", "job", "nesting", "part", "threads")

    def __init__(self, found: Job | None, nesting: int) -> None:
        self.job = found
        self.part: Part = DETACHED if found is None else found
        self.nesting = nesting  # how often this task was put in the place of another one
        self.is_replaced = False
        self.before = current()
        self.threads = frozenset(threading.enumerate())


class _Runs:
    """The tasks of an app that run in this process, and what Celery's signals say of them.

    A report comes before the ack of Celery's message: so a process that is killed between the two repeats the task.
    """

    def __init__(self, app: celery.Celery, replies: Replies) -> None:
        self.has_run = False
        self._app = app
        self._replies = replies
        # By their requests: a retry has the id of the task, and may begin before that one ends.
        self._runs: dict[int, _Run] = {}
        # What the main process of a worker knows of tasks whose pool process is gone.
        self._received: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._quiet = Quiet()

    # ---- where tasks run ---------------------------------------------------------------------------------------------

    def task_prerun(self, sender: Any, **_: object) -> None:
        request = sender.request
        if sender.app is not self._app or request.is_eager:
            return  # an eager task is a part of the code that calls it
        run = _Run(self._job(_token_in(request), sender.name), request.get("replaced_task_nesting", 0))
        self.has_run = True
        self._runs[id(request)] = run
        set_current(run.part)

    def task_postrun(self, sender: Any, retval: object, state: str | None, **_: object) -> None:
        run = self._runs.pop(id(sender.request), None)
        if run is None:
            return
        set_current(run.before)
        if run.job is not None:
            _end(run, run.job, state, retval, acks_late=sender.acks_late)

    def part_of_thread(self, name: str) -> Part | None:
        """Return the part that a thread works for whose context does not say so; None if it is no task's thread.

        Raises
        ------
        UnattributedError
            It may work for several, or for one that has ended.
        """
        thread = threading.current_thread()
        runs = [*self._runs.values()]
        if len(runs) == 1 and thread not in runs[0].threads:
            return runs[0].part  # the only task began it
        if not runs and thread is threading.main_thread():
            return None
        if type(thread).__module__.startswith("celery."):
            return None  # such as the scheduler's
        raise UnattributedError(
            f"{name} was not sent: {thread.name} works for no known task, or for one that has ended, so no message"
            " would wait for it. Start such threads with contextvars.copy_context().run, and wait for them before the"
            " task ends; or send this in a block of acker.remote.detached()"
        )

    def note_sent(self, part: Part, nesting: int) -> None:
        """Note whether a part sends a task that takes the place of the one that runs."""
        for run in self._runs.copy().values():
            if run.part is part and nesting > run.nesting:
                run.is_replaced = True

    def _job(self, token: str | None, name: str) -> Job | None:
        if token is None:
            return None
        try:
            return job(token, self._replies, name)
        except TokenError as error:
            if self._quiet.may_log():
                log.error("a task %s runs, and no message waits for it: %s", name, error)
            return None

    # ---- what ends tasks without their end ---------------------------------------------------------------------------

    def task_received(self, request: Any, **_: object) -> None:
        if request.app is self._app and _token_in(request.request_dict) is not None:
            self._received[request.id] = request

    def task_failure(self, sender: Any, task_id: str, exception: BaseException, **_: object) -> None:
        now = sender.request
        if sender.app is not self._app or id(now) in self._runs:
            return  # `task_postrun` follows
        received = self._received.get(task_id)
        if now.id == task_id:
            self._fail(_token_in(now), sender.name, exception)
        elif received is not None:
            self._fail(_token_in(received.request_dict), sender.name, exception)

    def task_revoked(self, sender: Any, request: Any, expired: bool, terminated: bool, **_: object) -> None:
        if sender.app is self._app:
            why = "it expired before it ran" if expired else "it was terminated" if terminated else "it was revoked"
            self._fail(_token_in(request), sender.name, why)

    def task_unknown(self, sender: Any, message: Any, name: str, **_: object) -> None:
        if sender.app is self._app:
            self._fail(_token_in(message.headers), name, "the worker knows no task of this name")

    def task_rejected(self, sender: Any, message: Any, exc: BaseException | None, **_: object) -> None:
        if getattr(sender, "app", None) is self._app:
            self._fail(_token_in(message.headers), "a task", exc or "the worker cannot read its message")

    def _fail(self, token: str | None, name: str, reason: object) -> None:
        found = self._job(token, name)
        if found is not None:
            found.fail(reason)


def _token_in(request: Any) -> str | None:
    """Return the token that came with a task: by protocol 2 among the parts of the request, by 1 in its headers."""
    found = request.get(_HEADER) or (request.get("headers") or {}).get(_HEADER)
    return None if found is None else str(found)


def _end(run: _Run, found: Job, state: str | None, outcome: object, *, acks_late: bool) -> None:
    """Report how a task has ended; a retry and a replacement are tasks that it has sent."""
    if state in (states.SUCCESS, states.RETRY) or (state == states.IGNORED and run.is_replaced):
        found.ack()
    elif state is None or (isinstance(outcome, Reject) and outcome.requeue and acks_late):
        found.abandon()  # the process ends, or the task was put back: it runs again
    else:
        found.fail(outcome if outcome is not None else state)


class _Sender:
    """Sends the messages of an app: it gives tasks that somebody awaits a token, and then lets Celery send them.

    Celery's own signal before a send swallows exceptions, and would send the task without a token.
    """

    def __init__(self, amqp: Any, runs: _Runs, *, is_strict: bool) -> None:
        self._amqp = amqp
        self._runs = runs
        self._is_strict = is_strict
        self._send: Any = None
        self._has_minted = False
        self._quiet = Quiet()

    def __call__(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        # Those of a retry have the token of the task that it repeats.
        headers = dict(options.pop("headers", None) or {})
        old = headers.pop(_HEADER, message.headers.pop(_HEADER, None))
        part = self._part(name, is_awaited=old is not None)
        if part is None:
            token = old  # of a message that Celery sends once more, as when a pool process was lost
        elif part is DETACHED:
            token = None
        else:
            token = part.token(name)
            self._has_minted = True
            self._runs.note_sent(part, message.headers.get("replaced_task_nesting") or 0)
        if token is not None:
            message.headers[_HEADER] = token
        if self._send is None:
            self._send = self._amqp._create_task_sender()
        try:
            sent = self._send(producer, name, message, headers=headers, **options)
        except BaseException as error:
            if part is not None:
                part.not_sent(f"the send of {name} raised {exception_text(error)}")
            raise
        return sent

    def _part(self, name: str, *, is_awaited: bool) -> Part | None:
        part = current()
        is_stray = part is None and not is_awaited and self._has_minted and not self._runs.has_run
        if is_stray and self._quiet.may_log():
            log.warning(
                "%s is sent by %s for no message, so none waits for it. If it works for one, let it do so by"
                " message.submit or contextvars.copy_context().run; else use a block of acker.remote.detached()",
                name,
                threading.current_thread().name,
            )
        if part is not None or not self._runs.has_run:
            return part
        try:
            return self._runs.part_of_thread(name)
        except UnattributedError:
            if self._is_strict:
                raise
            return None
