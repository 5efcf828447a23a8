"""Celery: tasks that a message or another task sends carry tokens, and report when they are done."""

from __future__ import annotations

import weakref
from typing import Any, Final

from acker.errors import ArgumentTypeError, RuntimeStateError
from acker.remote.jobs import Job, Part
from acker.remote.replies import Replies
from acker.remote.runs import Runs, sending

try:
    import celery
    from celery import signals, states
    from celery.exceptions import Ignore, Reject
except ImportError as error:
    raise ImportError("acker.remote.celery needs Celery: pip install 'acker[celery]'") from error

__all__ = ["install"]

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
    tasks = _Tasks(app, Runs(replies, "celery.", unattributed))
    if isinstance(vars(app.amqp).get(_SENDER), _TaskSender):
        raise RuntimeStateError(f"install was called before for {app!r}")
    vars(app.amqp)[_SENDER] = _TaskSender(app.amqp, tasks)
    if replies.skip_gone:
        _ask_before_start(tasks)
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
        signal.connect(getattr(tasks, signal.name), weak=False)


class _Tasks:
    """The tasks of an app that run in this process, and what Celery's signals say of them.

    A report comes before the ack of Celery's message: so a process that is killed between the two repeats the task.
    """

    def __init__(self, app: celery.Celery, runs: Runs) -> None:
        self.runs = runs
        self._app = app
        # How often the task of a part was put in the place of another one, and the parts that are so replaced.
        self._nesting: dict[Part, int] = {}
        self._replaced: set[Part] = set()
        # What the main process of a worker knows of tasks whose pool process is gone.
        self._received: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    # ---- where tasks run ---------------------------------------------------------------------------------------------

    # Runs are known by their requests: a retry has the id of the task, and may begin before that one ends.

    def task_prerun(self, sender: Any, **_: object) -> None:
        request = sender.request
        if sender.app is not self._app or request.is_eager:
            return  # an eager task is a part of the code that calls it
        run = self.runs.begin(id(request), _token_in(request), sender.name)
        if run.job is not None:
            self._nesting[run.job] = request.get("replaced_task_nesting", 0)

    def refuse_skipped(self, task: Any) -> None:
        """Raise Ignore for a task that is to be skipped."""
        run = self.runs.get(id(task.request))
        if task.app is self._app and run is not None and run.is_skipped:
            raise Ignore

    def task_postrun(self, sender: Any, retval: object, state: str | None, **_: object) -> None:
        run = self.runs.end(id(sender.request))
        if run is None or run.job is None:
            return
        is_replaced = run.job in self._replaced
        self._replaced.discard(run.job)
        del self._nesting[run.job]
        _end(run.job, state, retval, is_replaced=is_replaced, acks_late=sender.acks_late)

    def note_sent(self, part: Part, nesting: int) -> None:
        """Note whether a part sends a task that takes the place of the one that runs."""
        if nesting > self._nesting.get(part, nesting):
            self._replaced.add(part)

    # ---- what ends tasks without their end ---------------------------------------------------------------------------

    def task_received(self, request: Any, **_: object) -> None:
        if request.app is self._app and _token_in(request.request_dict) is not None:
            self._received[request.id] = request

    def task_failure(self, sender: Any, task_id: str, exception: BaseException, **_: object) -> None:
        now = sender.request
        if sender.app is not self._app or self.runs.get(id(now)) is not None:
            return  # `task_postrun` follows
        received = self._received.get(task_id)
        if now.id == task_id:
            self.runs.fail(_token_in(now), sender.name, exception)
        elif received is not None:
            self.runs.fail(_token_in(received.request_dict), sender.name, exception)

    def task_revoked(self, sender: Any, request: Any, expired: bool, terminated: bool, **_: object) -> None:
        if sender.app is self._app:
            why = "it expired before it ran" if expired else "it was terminated" if terminated else "it was revoked"
            self.runs.fail(_token_in(request), sender.name, why)

    def task_unknown(self, sender: Any, message: Any, name: str, **_: object) -> None:
        if sender.app is self._app:
            self.runs.fail(_token_in(message.headers), name, "the worker knows no task of this name")

    def task_rejected(self, sender: Any, message: Any, exc: BaseException | None, **_: object) -> None:
        if getattr(sender, "app", None) is self._app:
            self.runs.fail(_token_in(message.headers), "a task", exc or "the worker cannot read its message")


def _ask_before_start(tasks: _Tasks) -> None:
    """Let tasks be skipped. A signal cannot do it, so this is a part of the class of all tasks."""
    before = celery.Task.before_start

    def before_start(task: Any, task_id: str, args: Any, kwargs: Any) -> None:
        tasks.refuse_skipped(task)
        before(task, task_id, args, kwargs)

    celery.Task.before_start = before_start


def _token_in(request: Any) -> str | None:
    """Return the token that came with a task: by protocol 2 among the parts of the request, by 1 in its headers."""
    found = request.get(_HEADER) or (request.get("headers") or {}).get(_HEADER)
    return None if found is None else str(found)


def _end(found: Job, state: str | None, outcome: object, *, is_replaced: bool, acks_late: bool) -> None:
    """Report how a task has ended; a retry and a replacement are tasks that it has sent."""
    if state in (states.SUCCESS, states.RETRY) or (state == states.IGNORED and is_replaced):
        found.finish()
    elif state is None or (isinstance(outcome, Reject) and outcome.requeue and acks_late):
        found.abandon()  # the process ends, or the task was put back: it runs again
    else:
        found.finish(outcome if outcome is not None else state)


class _TaskSender:
    """Sends the messages of an app: it gives tasks that somebody awaits a token, and then lets Celery send them.

    Celery's own signal before a send swallows exceptions, and would send the task without a token.
    """

    def __init__(self, amqp: Any, tasks: _Tasks) -> None:
        self._amqp = amqp
        self._tasks = tasks
        self._send: Any = None

    def __call__(self, producer: Any, name: str, message: Any, **options: Any) -> Any:
        # Those of a retry have the token of the task that it repeats.
        headers = dict(options.pop("headers", None) or {})
        old = headers.pop(_HEADER, message.headers.pop(_HEADER, None))
        part = self._tasks.runs.sender(name, is_awaited=old is not None)
        token = self._tasks.runs.token(part, old, name)
        if part is not None:
            self._tasks.note_sent(part, message.headers.get("replaced_task_nesting") or 0)
        if token is not None:
            message.headers[_HEADER] = token
        if self._send is None:
            self._send = self._amqp._create_task_sender()
        with sending(part, name):
            return self._send(producer, name, message, headers=headers, **options)
