"""Spans of OpenTelemetry, as the SDK's exporter in memory gets them."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from acker.connectors import Consumer, Outgoing
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource, run_once

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = f"00-{TRACE:032x}-{PARENT:016x}-01"


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def work(item):
    if item == "sofa":
        raise LookupError("no sofa is left")


def test_a_message_has_a_span_and_each_part_of_its_work_a_child(provider, exporter):
    with ThreadPoolExecutor(1) as pool:

        def handle(message):
            message.submit(pool, work, "lamp")

        run_once(handle, [b"a"], tracer_provider=provider)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    message = spans.pop("process memory")
    assert (
        message.kind is SpanKind.CONSUMER and message.parent is None and message.status.status_code is StatusCode.UNSET
    )
    assert message.attributes["messaging.message.id"] == "memory/0" and message.attributes["acker.attempt"] == 1
    assert message.attributes["messaging.destination.name"] == "memory"
    assert message.attributes["messaging.operation.type"] == "process"
    assert {name.rpartition(".")[2] for name in spans} == {"handle", "work"}
    assert {span.parent.span_id for span in spans.values()} == {message.context.span_id}


@pytest.mark.parametrize("header", [HEADER, HEADER.encode()])
def test_the_trace_of_the_headers_goes_on_in_what_is_published(provider, exporter, header):
    publisher = MemoryPublisher()
    publisher.open()

    def handle(message):
        publisher.publish([Outgoing(b"parcel", headers={"n": 1})])

    run_once(handle, [Outgoing(b"a", headers={"traceparent": header})], tracer_provider=provider)
    call, message = exporter.get_finished_spans()
    assert (message.context.trace_id, message.parent.span_id) == (TRACE, PARENT)
    assert call.parent.span_id == message.context.span_id
    (sent,) = publisher.published
    assert sent.headers == {"n": 1, "traceparent": f"00-{TRACE:032x}-{call.context.span_id:016x}-01"}
    publisher.publish([Outgoing(b"of nobody")])
    assert publisher.published[-1].headers == {}


def test_each_attempt_has_a_span_that_says_why_it_failed(provider, exporter):
    run_once(lambda message: work("sofa"), [b"a"], attempts_max=2, tracer_provider=provider)
    attempts = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CONSUMER]
    assert [span.attributes["acker.attempt"] for span in attempts] == [1, 2]
    for span in attempts:
        assert (span.status.status_code, span.status.description) == (
            StatusCode.ERROR,
            "LookupError: no sofa is left",
        )


def test_coroutines_have_spans_within_that_of_the_one_that_spawned_them(provider, exporter):
    async def send():
        await asyncio.sleep(0)

    async def handle(message):
        message.spawn(send())
        await asyncio.sleep(0)

    run_once(handle, [b"a", b"b"], threads=2, tracer_provider=provider)
    spans = exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    sent = [span for span in spans if span.name.endswith("send")]
    assert len(spans) == 6 and len(sent) == 2
    for span in sent:
        above = by_id[span.parent.span_id]
        assert above.name.endswith("handle") and by_id[above.parent.span_id].name == "process memory"


def test_a_coroutine_that_is_cancelled_with_its_message_has_failed(provider, exporter):
    async def handle(message):
        begun = asyncio.Event()

        async def charge():
            begun.set()
            await asyncio.Event().wait()

        message.spawn(charge())
        await begun.wait()
        message.fail("enough")

    run_once(handle, [b"a"], tracer_provider=provider)
    spans = {span.name.rpartition(".")[2]: span for span in exporter.get_finished_spans()}
    assert spans["process memory"].status.description == "enough"
    status = spans["charge"].status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "CancelledError")


def test_a_message_that_goes_back_ends_its_span(provider, exporter):
    broker = MemoryBroker()
    broker.publish([b"a"])
    with Consumer(MemorySource(broker), tracer_provider=provider, drain_secs=0.05) as consumer:
        message = next(iter(consumer))
        consumer.stop()
    (span,) = exporter.get_finished_spans()
    assert span.status.description == "taken back by the broker" and not message.alive
    del message


def test_without_a_provider_there_are_no_spans_and_no_headers(exporter):
    publisher = MemoryPublisher()
    publisher.open()
    run_once(
        lambda message: publisher.publish([Outgoing(b"parcel")]), [Outgoing(b"a", headers={"traceparent": HEADER})]
    )
    assert publisher.published[0].headers == {} and exporter.get_finished_spans() == ()
