"""Dramatiq: messages that a message or another one sends carry tokens, and report before they are acked or rejected."""

from __future__ import annotations

from typing import Any, Final

from acker.errors import ArgumentTypeError, RuntimeStateError
from acker.remote.jobs import Part
from acker.remote.replies import Replies
from acker.remote.runs import Runs, sending

try:
    import dramatiq
    from dramatiq.middleware import Middleware, SkipMessage
    from dramatiq.middleware.middleware import MiddlewareError
except ImportError as error:
    raise ImportError("acker.remote.dramatiq needs Dramatiq: pip install 'acker[dramatiq]'") from error

__all__ = ["install"]

_OPTION: Final = "acker"
_SENDER: Final = "enqueue"


def install(broker: dramatiq.Broker, replies: Replies, *, unattributed: str = "raise") -> None:
    """Let messages of a broker that work for a message of a consumer be awaited by it, and what they send as well.

    Call it once in each process: where messages are consumed, and in the module of the workers' actors. Call it after
    all middleware has been added, since it has to be the first.

    Parameters
    ----------
    broker : dramatiq.Broker
    replies : Replies
        To the same server everywhere.
    unattributed : {"raise", "ignore"}
        What a worker does when a thread sends of which nothing says for which running message it does so: raise
        `UnattributedError` in place of the send, or send it, and nobody awaits it.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    RuntimeStateError
        It was called before for this broker.
    """
    if not isinstance(broker, dramatiq.Broker):
        raise ArgumentTypeError(f"broker: expected a dramatiq.Broker, got {type(broker).__name__}")
    runs = Runs(replies, "dramatiq.", unattributed)
    if isinstance(vars(broker).get(_SENDER), _MessageSender):
        raise RuntimeStateError(f"install was called before for {broker!r}")
    ends = _Ends(runs)
    first = broker.middleware[0] if broker.middleware else None
    broker.add_middleware(ends, before=None if first is None else type(first))
    vars(broker)[_SENDER] = _MessageSender(broker.enqueue, runs, ends)


class _NotFirstError(MiddlewareError, RuntimeStateError):
    """An error that Dramatiq does not swallow."""


class _Ends(Middleware):
    """The messages that run in this process, and how they end.

    It is the first one: so it begins before all others, and knows the end after all of them, when retries, pipelines
    and callbacks of groups have been sent. A report comes before the ack: so a process that is killed between the two
    repeats the message.
    """

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        # By the message, as a worker has it, until it is acked or rejected.
        self._reasons: dict[int, object] = {}
        self._running: dict[Part, str] = {}

    def before_worker_boot(self, broker: Any, worker: Any) -> None:
        if broker.middleware[0] is not self:
            raise _NotFirstError(
                f"acker.remote.dramatiq has to be the first middleware, and {broker.middleware[0]!r} is: call install"
                " after the middleware is added"
            )

    def before_process_message(self, broker: Any, message: Any) -> None:
        run = self._runs.begin(id(message), _token_in(message), message.actor_name)
        if run.is_skipped:
            raise SkipMessage("nobody waits for it any more")
        if run.job is not None:
            self._running[run.job] = message.message_id

    def after_process_message(self, broker: Any, message: Any, *, result: Any = None, exception: Any = None) -> None:
        run = self._runs.get(id(message))
        if exception is not None and run is not None and (run.job in self._running or message.failed):
            self._reasons[id(message)] = exception  # and no retry was sent

    def after_skip_message(self, broker: Any, message: Any) -> None:
        self._reasons[id(message)] = "a middleware skipped it, such as that of age limits"

    def before_ack(self, broker: Any, message: Any) -> None:
        self._end(message)

    def before_nack(self, broker: Any, message: Any) -> None:
        if self._runs.get(id(message)) is None:
            self._runs.fail(_token_in(message), message.actor_name, "the worker knows no actor of this name")
        self._end(message, "it was rejected")

    def note_sent(self, part: Part, message: Any) -> None:
        """Note that a part has sent a message: if it is its own, as a retry is, the end of the run is no failure."""
        if self._running.get(part) == message.message_id:
            del self._running[part]

    def _end(self, message: Any, reason: object = None) -> None:
        run = self._runs.end(id(message))
        reason = self._reasons.pop(id(message), reason)
        if run is None or run.job is None:
            return  # a message of the queue for later is acked when it was sent to the other one
        self._running.pop(run.job, None)
        run.job.finish(reason)


class _MessageSender:
    """Sends the messages of a broker: it gives those that somebody awaits a token, and then lets Dramatiq send.

    A middleware could not do it: Dramatiq goes on when one raises, and would send the message without a token.
    """

    def __init__(self, send: Any, runs: Runs, ends: _Ends) -> None:
        self._send = send
        self._runs = runs
        self._ends = ends

    def __call__(self, message: Any, *, delay: Any = None) -> Any:
        old = _token_in(message)
        part = self._runs.sender(message.actor_name, is_awaited=old is not None)
        token = self._runs.token(part, old, message.actor_name)
        # A copy, as one message may be sent twice, and each time has a token of its own.
        copy = message.copy(options={_OPTION: token})
        if token is None:
            del copy.options[_OPTION]
        with sending(part, message.actor_name):
            sent = self._send(copy, delay=delay)
        if part is not None:
            self._ends.note_sent(part, message)
        return sent


def _token_in(message: Any) -> str | None:
    found = message.options.get(_OPTION)
    return None if found is None else str(found)
