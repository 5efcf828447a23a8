"""The live page of a consumer, over a broker in memory."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

from acker.connectors import Consumer
from acker.observe.calls import Busy
from acker.testing.connectors import MemoryPublisher, MemorySource
from acker.ui import LivePage
from tests.ui.fakes import ask, fresh

PAGE = LivePage(port=0, interval_secs=0.05)
# Longer than any look at the page: after a failure, the pool has to end.
LONG = 120.0


def consumer_of(broker, **options):
    publisher = MemoryPublisher(broker)
    defaults = {"attempts_max": 1, "dead_letters": publisher, "drain_secs": 0, "ui": PAGE, "timeout_secs": 300}
    return Consumer(MemorySource(broker), **{**defaults, **options})


def act(consumer, name, body):
    page = consumer.page
    status, _, answer = ask(page, f"/api/actions/{name}", "POST", body, x_acker_token=page.token)
    return status, json.loads(answer)


def test_open_messages_are_shown_with_what_holds_them(broker, capsys) -> None:
    broker.publish([b"one"])
    with consumer_of(broker, trace=True) as consumer:
        assert f"live page of {consumer.name}: {consumer.page.url_with_token}" in capsys.readouterr().err
        message = next(iter(consumer))
        child = message.child()
        # On another thread: so this one stands here, whenever the page looks.
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(fresh, consumer.page, lambda view: "made" in str(view["open_trees"]["rows"]))
            view = asked.result()
        (row,) = view["open_trees"]["rows"]
        assert row["id"] == message.key and row["attempt"] == 1
        runs, *made = row["holders"]
        assert runs["component"] == "MainThread"
        assert runs["line"].endswith(" in test_open_messages_are_shown_with_what_holds_them")
        assert made and all("test_consumer_view.py" in each["line"] for each in made)
        assert view["kind"] == "consumer" and view["state"] == "running" and view["timeout_ms"] == 300_000
        assert [node["name"] for node in view["graph"]["nodes"]][1] == "this process"
        assert view["graph"]["nodes"][1]["queue"] == 1
        assert view["totals"]["pending"] == consumer.stats().pending == 1
        found = json.loads(ask(consumer.page, f"/api/find?id={message.key}")[2])["found"]
        assert [each["what"] for each in found] == ["open"]
        child.ack()
        message.ack()
        fresh(consumer.page, lambda view: view["totals"]["acked"] == consumer.stats().acked == 1)


def test_a_message_that_timed_out_says_which_code_had_it(broker) -> None:
    broker.publish([b"one"])
    with consumer_of(broker, trace=True, timeout_secs=1) as consumer:
        fresh(consumer.page, lambda view: True)  # so the next look takes no time
        message = next(iter(consumer))
        child = message.child()
        view = fresh(consumer.page, lambda view: view["failures"]["rows"])
        (row,) = view["failures"]["rows"]
        assert row["kind"] == "timed out" and "test_consumer_view.py" in str(row["held_by"])
        child.ack()
        message.ack()


def test_failures_and_dead_letters_have_their_reasons_and_no_values(broker) -> None:
    broker.publish([b"secret body"])
    with consumer_of(broker) as consumer:
        message = next(iter(consumer))
        message.fail("no such customer")
        view = fresh(consumer.page, lambda view: view["dead_letters"]["total"] == 1)
        assert view["failures"]["rows"][0]["why"] == "no such customer"
        (letter,) = view["dead_letters"]["rows"]
        assert (letter["id"], letter["why"]) == (message.key, "no such customer")
        assert (
            not view["dead_letters"]["can_replay"] and "publish them again from there" in view["dead_letters"]["note"]
        )
        assert "secret body" not in json.dumps(view)
        found = json.loads(ask(consumer.page, f"/api/find?id={message.key}")[2])["found"]
        assert [each["what"] for each in found] == ["failure", "dead letter"]
        assert b"acker_messages_failed_total" in ask(consumer.page, "/metrics")[2]


def test_bodies_are_shown_if_asked_for(broker) -> None:
    broker.publish([b"body"])
    with consumer_of(broker, ui=LivePage(port=0, values=True)) as consumer:
        next(iter(consumer)).fail("no")
        view = fresh(consumer.page, lambda view: view["dead_letters"]["rows"])
        assert view["dead_letters"]["rows"][0]["values"] == "b'body'"


def test_a_message_is_failed_by_hand(broker) -> None:
    broker.publish([b"one"])
    with consumer_of(broker) as consumer:
        message = next(iter(consumer))
        (row,) = fresh(consumer.page, lambda view: view["open_trees"]["rows"])["open_trees"]["rows"]
        assert act(consumer, "fail", {"root_id": row["root_id"]}) == (200, {"did": f"failed {message.key}"})
        view = fresh(consumer.page, lambda view: view["dead_letters"]["total"])  # it has ended by then
        assert view["failures"]["rows"][0]["why"] == "failed by hand, from the live page"
        status, answer = act(consumer, "fail", {"root_id": row["root_id"]})
        assert status == 409 and "not open any more" in answer["error"]
        message.ack()


def test_the_page_ends_with_the_consumer(broker) -> None:
    consumer = consumer_of(broker)
    assert consumer.page is None
    with consumer:
        name = f"{consumer.name}.ui"
        assert name in {thread.name for thread in threading.enumerate()}
    assert name not in {thread.name for thread in threading.enumerate()}


def test_without_the_option_nothing_is_recorded(broker) -> None:
    broker.publish([b"one"])
    with consumer_of(broker, ui=None) as consumer:
        next(iter(consumer)).fail("no")
    assert consumer.page is None and consumer._store.failures is None


def headline_of(consumer, start):
    """Return the first headline that begins so."""
    return fresh(consumer.page, lambda view: view["headline"]["text"].startswith(start))["headline"]


def test_a_broker_that_cannot_be_reached_is_the_headline_until_it_answers(broker) -> None:
    with consumer_of(broker) as consumer:
        broker.stop()
        found = headline_of(consumer, "memory cannot be reached for ")
        assert found["tone"] == "bad" and "and is tried again: ConnectionLostError: " in found["text"]
        broker.start()
        headline_of(consumer, "Idle")


def test_the_headline_tells_how_many_messages_fail_and_the_line_why(broker) -> None:
    broker.publish([b"one", b"two", b"three"])
    with consumer_of(broker, attempts_max=None) as consumer:
        for _, message in zip(range(3), consumer, strict=False):
            with message:
                if message.value != b"one":
                    raise LookupError("no sofa is left")
        found = headline_of(consumer, "Failing: 2 of 3 messages in the last seconds")
    assert found["tone"] == "bad" and ": LookupError: no sofa is left, test_consumer_view.py:" in found["text"]
    assert found["text"].endswith(" in test_the_headline_tells_how_many_messages_fail_and_the_line_why.")


def test_a_consumer_that_has_stopped_tells_its_dead_letters(broker) -> None:
    broker.publish([b"one"])
    consumer = consumer_of(broker)
    with consumer:
        next(iter(consumer)).fail("no such customer")
        fresh(consumer.page, lambda view: view["dead_letters"]["total"] == 1)
        source = consumer.page._app._source
    found = source.view()["headline"]
    assert found["tone"] == "fair"
    assert found["text"].startswith("Stopped. 1 dead letter: no such customer, test_consumer_view.py:")


def test_a_pool_that_is_full_is_told_with_the_parts_that_wait_for_it(broker) -> None:
    broker.publish([b"one", b"two", b"three"])
    ending = threading.Event()
    with ThreadPoolExecutor(1) as pool, consumer_of(broker) as consumer:
        for _, message in zip(range(3), consumer, strict=False):
            message.submit(pool, ending.wait, LONG)
        found = headline_of(
            consumer,
            "At its limit: the only thread of the pool is busy; 2 parts wait. Give the pool more threads, or start"
            " another process.",
        )
        ending.set()
    assert found["tone"] == "fair"


def test_a_slow_consumer_names_the_line_where_most_calls_stand_and_how_long_they_take(broker) -> None:
    broker.publish([b"one", b"two", b"three", b"four"])
    ending, begun = threading.Event(), threading.Event()

    def charge(order):
        if order != b"one":
            begun.set()
            ending.wait(LONG)

    with ThreadPoolExecutor(1) as pool, consumer_of(broker) as consumer:
        for _, message in zip(range(4), consumer, strict=False):
            message.submit(pool, charge, message.value)
        begun.wait()
        told = [f", at test_consumer_view.py:{charge.__code__.co_firstlineno + 3} in ", ".charge; 2 parts wait."]
        found = fresh(consumer.page, lambda view: all(each in view["headline"]["text"] for each in told))["headline"]
        ending.set()
    assert found["text"].startswith("At its limit: the only thread of the pool is busy; most calls take ")


def test_messages_that_wait_behind_the_limit_are_told(broker) -> None:
    broker.publish([b"one", b"two", b"three"])
    with consumer_of(broker, open_max=2) as consumer:
        message = next(iter(consumer))
        headline_of(consumer, "At its limit: 2 of 2 messages are pending; 1 message waits. Work on more")
        message.ack()


def test_messages_that_wait_for_another_attempt_are_not_told_to_need_more_threads(broker) -> None:
    broker.publish([b"one", b"two", b"three"])
    with consumer_of(broker, open_max=2, attempts_max=None, backoff_secs=60) as consumer:
        for _, message in zip(range(2), consumer, strict=False):
            message.fail("no sofa is left")
        fresh(consumer.page, lambda view: consumer._store.retrying == 2)
        told = [consumer._view._limit(consumer.stats(), 0, Busy()) for _ in range(3)]
    assert told[-1].mend.startswith(
        "2 of them have failed, and wait for another attempt: no sofa is left, test_consumer_view.py:"
    )


def test_a_message_that_nobody_works_for_is_told_to_be_forgotten(broker) -> None:
    broker.publish([b"one"])
    kept = []
    with consumer_of(broker, timeout_secs=4) as consumer:

        def take():
            kept.extend(consumer)

        loop = threading.Thread(target=take)
        loop.start()
        found = headline_of(consumer, "1 message has been stuck")
        later = headline_of(consumer, "1 message timed out")
    loop.join()
    asked = ", and no call works on it: is its ack forgotten?"
    assert found["text"].endswith(f"s{asked}")
    quoted = "\N{LEFT DOUBLE QUOTATION MARK}your code\N{RIGHT DOUBLE QUOTATION MARK}"
    where = f"at {quoted}, test_consumer_view.py:{take.__code__.co_firstlineno + 1} in "
    assert where in found["text"] and where in later["text"] and asked in later["text"]


def test_the_drawing_of_a_consumer_speaks_of_messages(broker) -> None:
    with consumer_of(broker) as consumer:
        graph = fresh(consumer.page, lambda view: True)["graph"]
    assert "messages a second" in graph["hint"]
    assert not [node for node in graph["nodes"] if "tasks" in node]


def test_a_handler_whose_threads_are_all_busy_is_told_with_the_messages_that_wait(broker) -> None:
    broker.publish([b"one", b"two", b"three"])
    begun, ending = threading.Event(), threading.Event()

    def handle(message):
        begun.set()
        ending.wait(LONG)

    consumer = consumer_of(broker)
    running = threading.Thread(target=consumer.run, args=[handle], kwargs={"threads": 1, "until": "empty"})
    running.start()
    begun.wait()
    try:
        headline_of(
            consumer,
            "At its limit: the only thread of the handler is busy; 2 messages wait. Give the handler more threads, or"
            " start another process.",
        )
    finally:
        ending.set()
    running.join()
