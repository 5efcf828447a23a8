"""Failures after which no further attempt is made, and failures that say when the next one is."""

import asyncio
import inspect
import logging
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

from acker import ArgumentTypeError, ArgumentValueError
from acker.connectors import Consumer, Reject
from acker.testing.connectors import MemoryBroker, MemoryPublisher, MemorySource

QUICK = {"backoff_secs": 0.001, "backoff_secs_max": 0.002}


@pytest.fixture(params=[False, True], ids=["tried again here", "tried again by the broker"])
def broker(request):
    broker = MemoryBroker(delays=request.param)
    yield broker
    assert broker.violations == []


def reject(_=None):
    raise Reject("no such customer")


def run(broker, handler, **options):
    """Run a handler on one message; return the figures, and the reason and the attempts of its dead letter."""
    broker.publish([b"a"])
    letters = MemoryPublisher()
    options = {"attempts_max": 3, "dead_letters": letters, **QUICK, **options}
    consumer = Consumer(MemorySource(broker), **options)
    if inspect.iscoroutinefunction(handler):
        stats = asyncio.run(consumer.run_async(handler, until="empty"))
    else:
        stats = consumer.run(handler, until="empty")
    assert broker.left() == 0
    told = [(letter.headers["acker-reason"], letter.headers["acker-attempts"]) for letter in letters.published]
    return stats, told


def raises(error):
    def handle(message):
        raise error

    return handle


async def reject_async(_):
    reject()


async def spawn_reject(message):
    message.spawn(reject_async(message))


def submit_to(pool):
    return lambda message: message.submit(pool, reject)


def test_a_rejected_message_is_a_dead_letter_after_its_first_attempt(broker):
    stats, ((reason, attempts),) = run(broker, reject)
    assert "Reject: no such customer" in reason and attempts == 1
    assert (stats.failed, stats.retried, stats.dead_letters, stats.undecodable) == (1, 0, 1, 0)


@pytest.mark.parametrize("handler", [reject_async, spawn_reject])
def test_a_coroutine_rejects(broker, handler):
    _, ((reason, attempts),) = run(broker, handler)
    assert "Reject: no such customer" in reason and attempts == 1


def test_a_thread_of_a_pool_rejects(broker):
    with ThreadPoolExecutor(1) as pool:
        _, ((reason, attempts),) = run(broker, submit_to(pool))
    assert "Reject: no such customer" in reason and attempts == 1


def test_a_process_of_a_pool_rejects():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        _, ((reason, attempts),) = run(MemoryBroker(), submit_to(pool))
    assert "Reject: no such customer" in reason and attempts == 1


@pytest.mark.parametrize(
    ("options", "error", "attempts"),
    [
        ({}, LookupError("x"), 3),
        ({"final_on": LookupError}, KeyError("x"), 1),
        ({"final_on": (ValueError, LookupError)}, KeyError("x"), 1),
        ({"final_on": KeyError}, LookupError("x"), 3),
        ({"retry_on": OSError}, KeyError("x"), 1),
        ({"retry_on": (OSError, KeyError)}, KeyError("x"), 3),
        ({"retry_on": OSError, "final_on": FileNotFoundError}, FileNotFoundError("x"), 1),
        ({"retry_on": Exception}, Reject("x"), 1),
        ({"retry_on": ()}, OSError("x"), 1),
    ],
)
def test_types_of_exceptions_decide(broker, options, error, attempts):
    _, ((_, told),) = run(broker, raises(error), **options)
    assert told == attempts
    _, ((_, told),) = run(broker, lambda message: message.fail(error), **options)
    assert told == attempts


def test_a_failure_without_an_exception_is_final_only_if_it_says_so(broker):
    assert run(broker, lambda message: message.fail("x"), retry_on=OSError)[1] == [("failed: x (attempt 3)", 3)]
    assert run(broker, lambda message: message.fail("x", final=True))[1] == [("failed: x (attempt 1)", 1)]


def test_the_first_of_several_failures_decides(broker):
    def handle(message):
        children = [message.child(), message.child()]
        children[0].fail("passing" if message.attempt == 1 else "final", final=message.attempt > 1)
        children[1].fail("final" if message.attempt == 1 else "passing", final=message.attempt == 1)

    assert run(broker, handle)[1] == [("failed: final (attempt 2)", 2)]


def test_a_failure_may_say_when_the_next_attempt_is(broker, caplog):
    def handle(message):
        if message.attempt == 1:
            message.fail("the shop is closed", retry_in=0.25)

    stats, told = run(broker, handle, backoff_secs=60, backoff_secs_max=60)
    assert (stats.acked, stats.retried, told) == (1, 1, [])
    assert "the next one is in 0.25 s: failed: the shop is closed" in caplog.text


def test_what_contradicts_is_refused_and_ends_nothing(broker):
    def handle(message):
        for options, kind in (
            ({"final": True, "retry_in": 1.0}, ArgumentValueError),
            ({"retry_in": -1}, ArgumentValueError),
            ({"retry_in": "1"}, ArgumentTypeError),
        ):
            with pytest.raises(kind, match="retry_in"):
                message.fail("x", **options)

    assert run(broker, handle)[0].acked == 1


@pytest.mark.parametrize("name", ["retry_on", "final_on"])
def test_options_are_checked(name):
    source = MemorySource(MemoryBroker())
    with pytest.raises(ArgumentTypeError, match=f"{name}: expected types of exceptions, got 'OSError'"):
        Consumer(source, dead_letters=MemoryPublisher(), **{name: (KeyError, "OSError")})
    with pytest.raises(ArgumentTypeError, match=name):
        Consumer(source, dead_letters=MemoryPublisher(), **{name: SystemExit})
    with pytest.raises(ArgumentValueError, match=f"{name}: .* set dead_letters="):
        Consumer(source, **{name: OSError})


def test_the_end_of_the_program_is_no_final_failure(caplog):
    broker, letters = MemoryBroker(), MemoryPublisher()
    broker.publish([b"a"])
    consumer = Consumer(MemorySource(broker), dead_letters=letters, retry_on=OSError, drain_secs=0.1)
    with pytest.raises(SystemExit):
        consumer.run(lambda _: sys.exit(1))
    assert letters.published == [] and broker.left() == 1


def test_a_rejected_message_without_a_place_is_tried_again_and_an_error_says_so(broker, caplog):
    caplog.set_level(logging.ERROR, "acker.connectors")

    def handle(message):
        if message.attempt == 1:
            reject()

    stats, _ = run(broker, handle, dead_letters=None, attempts_max=None)
    assert (stats.acked, stats.retried) == (1, 1) and "it has no place to go to: set dead_letters=" in caplog.text
