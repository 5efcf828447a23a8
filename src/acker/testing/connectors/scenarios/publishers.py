"""Scenarios of publishers: what is confirmed is there."""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NoReturn

from acker.connectors.publisher import Outgoing, Publisher
from acker.errors import ForkedError, PublishError, SourceError
from acker.testing.connectors.consumer_run import ConsumerRun, ack_all, consume_rest, wait_until
from acker.testing.connectors.harness import NotApplicable, SourceHarness
from acker.testing.connectors.scenarios.scenario import Scenario, numbered


def a_publisher_opens_and_closes_in_any_order(harness: SourceHarness) -> None:
    """`close` raises nothing before `open`, and twice; the object can start anew."""
    publisher = harness.publisher()
    publisher.close()
    for round_number in range(2):
        publisher.open()
        assert publisher.publish([]) == []
        assert publisher.publish([Outgoing(b"message %d" % round_number)]) == [None]
        publisher.close()
        publisher.close()
    assert consume_rest(harness) == set(numbered(2))


def what_a_publisher_confirms_arrives(harness: SourceHarness) -> None:
    """Each message once, with its body, key and headers of any type."""
    headers = {"text": "größer", "bytes": b"\0\xff", "int": 7, "float": 0.5, "true": True, "none": None}
    values = [*harness.bodies, *numbered(100)]
    messages = [Outgoing(value, key=b"key", headers=headers) for value in values]
    with harness.publisher() as publisher:
        answers = publisher.publish(messages)
    assert answers == [None] * len(messages), [answer for answer in answers if answer is not None][:3]
    with ConsumerRun(harness) as run:
        found = run.wait_for(values)
        if harness.keeps_headers:
            text = found[0].headers["text"]
            assert (text.decode() if isinstance(text, bytes) else text) == "größer", text
        ack_all(run.messages)
        run.wait_empty()
        assert len(run.messages) == len(values)


def threads_share_a_publisher(harness: SourceHarness) -> None:
    """Each message that was confirmed to one of several threads is there, once."""
    count = 15
    with harness.publisher() as publisher, ThreadPoolExecutor(8) as pool:

        def publish(thread: int) -> list[Exception | None]:
            values = numbered(count, first=thread * count)
            return [answer for value in values for answer in publisher.publish([Outgoing(value)])]

        answers = [answer for answers in pool.map(publish, range(8)) for answer in answers]
    assert answers == [None] * 8 * count, [answer for answer in answers if answer is not None][:3]
    with ConsumerRun(harness) as run:
        run.wait_for(numbered(8 * count))
        ack_all(run.messages)
        run.wait_empty()
        assert len(run.messages) == 8 * count


def a_forked_process_leaves_a_publisher_to_its_parent(harness: SourceHarness) -> None:
    """There `publish` is refused and `close` closes nothing; the parent publishes on."""
    harness.needs("publisher")
    if not hasattr(os, "fork"):
        raise NotApplicable("this system cannot fork")
    with harness.publisher() as publisher:
        assert publisher.publish([Outgoing(b"before")]) == [None]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # The parent has threads, of which the child uses none.
            child = os.fork()
        if child == 0:
            _end_as_fork(publisher)
        _, status = os.waitpid(child, 0)
        assert status == 0, "the child's publish was not refused by a ForkedError, or its close raised"
        assert publisher.publish([Outgoing(b"after")]) == [None]
    assert consume_rest(harness) == {b"before", b"after"}


def _end_as_fork(publisher: Publisher) -> NoReturn:
    code = 1
    try:
        try:
            publisher.publish([Outgoing(b"child")])
        except ForkedError:
            publisher.close()
            code = 0
    finally:
        os._exit(code)


def a_publisher_connects_again(harness: SourceHarness) -> None:
    """After a lost connection, a later call writes; until then each message has an error of its own."""
    harness.needs("publisher", "cut")
    with harness.publisher() as publisher:
        assert publisher.publish([Outgoing(b"before")]) == [None]
        harness.cut()
        _publish_until_confirmed(harness, publisher, b"after")
    assert consume_rest(harness) == {b"before", b"after"}


def a_refused_message_has_an_error(harness: SourceHarness) -> None:
    """One `PublishError` for each message, or a `SourceError` of `open`, without the password."""
    publisher = harness.publisher_to_nowhere()
    errors: list[Exception | None]
    try:
        publisher.open()
    except SourceError as error:
        errors = [error]
    else:
        errors = publisher.publish([Outgoing(b"one"), Outgoing(b"two")])
        assert len(errors) == 2
        assert all(isinstance(error, PublishError) for error in errors), f"expected PublishErrors, got {errors}"
    finally:
        publisher.close()
    for shown in map(str, errors):
        assert shown, "an error without a text"
        assert harness.secret is None or harness.secret not in shown, "the error names the password"


def _publish_until_confirmed(harness: SourceHarness, publisher: Publisher, value: bytes) -> None:
    def confirmed() -> bool:
        (answer,) = publisher.publish([Outgoing(value)])
        assert answer is None or isinstance(answer, PublishError), f"expected a PublishError, got {answer!r}"
        return answer is None

    wait_until(confirmed, "a message is confirmed after a lost connection", harness.patience_secs)


SCENARIOS: Final[tuple[Scenario, ...]] = (
    a_publisher_opens_and_closes_in_any_order,
    what_a_publisher_confirms_arrives,
    threads_share_a_publisher,
    a_forked_process_leaves_a_publisher_to_its_parent,
    a_publisher_connects_again,
    a_refused_message_has_an_error,
)
