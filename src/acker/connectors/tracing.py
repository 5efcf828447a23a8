"""OpenTelemetry's spans of messages and of the calls and coroutines that work for them. It needs the extra `otel`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, TracerProvider

from acker.connectors.source import Delivery
from acker.errors import exception_text

T = TypeVar("T")

# The names that OpenTelemetry has for what a source's module reads.
_SYSTEMS: Final = {"sqs": "aws_sqs", "redis_streams": "redis"}


class Spans:
    """Makes a span for each attempt at a message, with a child for each part of its work.

    Parameters
    ----------
    provider : TracerProvider
    source : str
        The source's name.
    module : str
        That of the source's class, whose last parts name the system.
    """

    def __init__(self, provider: TracerProvider, source: str, module: str) -> None:
        self._tracer = provider.get_tracer("acker.connectors")
        self._source = source
        name = module.removeprefix("acker.connectors.").partition(".")[0]
        self._system = _SYSTEMS.get(name, name)

    def begin(self, delivery: Delivery, attempt: int) -> Span:
        """Begin the span of an attempt; its parent is the one that the headers of the message name."""
        attributes: dict[str, Any] = {
            "messaging.system": self._system,
            "messaging.destination.name": self._source,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": delivery.key,
            "messaging.message.body.size": len(delivery.value),
            "acker.attempt": attempt,
        }
        parent = propagate.extract(_texts(delivery.headers), context=context.Context())
        name = f"process {self._source}"
        return self._tracer.start_span(name, context=parent, kind=SpanKind.CONSUMER, attributes=attributes)

    @contextmanager
    def part(self, span: Span, name: str) -> Iterator[None]:
        """Make a child of an attempt's span the current one; an exception is recorded there."""
        # Of a part of a part, the current span is the parent.
        current = trace.get_current_span()
        is_own = current.get_span_context().trace_id == span.get_span_context().trace_id
        parent = trace.set_span_in_context(current if is_own else span)
        with self._tracer.start_as_current_span(name, context=parent) as part:
            try:
                yield
            except Exception:
                raise  # which the tracer records
            except BaseException as error:
                # A coroutine that is cancelled, as when its message times out, has not done its part.
                part.set_status(Status(StatusCode.ERROR, exception_text(error)))
                raise

    def call(self, span: Span, work: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> T:
        """Call a function within a span of its own."""
        with self.part(span, name_of(work)):
            return work(*args, **kwargs)

    async def coroutine(self, span: Span, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine within a span of its own."""
        with self.part(span, name_of(work)):
            return await work


def end(span: Span, reason: object = None) -> None:
    """End the span of an attempt, which failed if there is a reason."""
    if reason is not None:
        span.set_status(Status(StatusCode.ERROR, str(reason)))
    span.end()


def trace_headers() -> dict[str, str]:
    """Return the headers that name the current span."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


def name_of(work: object) -> str:
    """Return the name of a function or a coroutine."""
    return str(getattr(work, "__qualname__", None) or type(work).__qualname__)


def _texts(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return headers as a propagator reads them: Kafka's are bytes."""
    found = {}
    for name, value in headers.items():
        if isinstance(value, bytes):
            found[name.lower()] = value.decode(errors="replace")
        elif isinstance(value, str):
            found[name.lower()] = value
    return found
