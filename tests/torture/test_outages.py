"""Outages under consumers of real brokers, and what their account would notice."""

import os
import threading
from collections import Counter
from contextlib import nullcontext

import pytest

from tests.torture.outages import __main__
from tests.torture.outages.consumer import TURNS
from tests.torture.outages.run import KINDS, Account, Outage, OutagesError, Plan, Run, plan_of, survive


def outages_of(name, server, tmp_path, seed):
    """Run each kind of outage once, and return the account."""
    plan = plan_of(seed, name, len(KINDS[name]), messages=200)
    account, happened = survive(plan, server, tmp_path / "run")
    assert set(happened) == set(KINDS[name])
    assert account.complete >= account.messages == 200
    # A consumer that ends gets as many turns as it needs, and on a busy machine others do the rest meanwhile.
    assert account.idle < len(KINDS[name]), "outages come while messages are open"
    return account


@pytest.mark.soak
def test_nothing_is_lost_with_rabbitmq(rabbitmq, tmp_path):
    outages_of("rabbitmq", rabbitmq, tmp_path, 11)


@pytest.mark.slow
def test_nothing_is_lost_with_redis(redis, tmp_path):
    outages_of("redis", redis, tmp_path, 12)


@pytest.mark.soak
def test_nothing_is_lost_with_kafka(kafka, tmp_path):
    outages_of("kafka", kafka, tmp_path, 13)


@pytest.mark.slow
def test_nothing_is_lost_with_nats(nats, tmp_path):
    outages_of("nats", nats, tmp_path, 14)


@pytest.mark.slow
def test_nothing_is_lost_with_postgresql(postgresql, tmp_path):
    outages_of("postgresql", postgresql, tmp_path, 15)


# ---- plans, and what would be noticed -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_plan_is_that_of_its_seed(name):
    plans = [plan_of(seed, name, 6) for seed in range(20)]
    assert plans == [plan_of(seed, name, 6) for seed in range(20)]
    assert {outage for plan in plans for outage, _ in plan.outages} == set(KINDS[name])
    assert {plan.queue.partition("_")[0] for plan in plans} >= ({"classic", "quorum"} if name == "rabbitmq" else set())
    assert Outage.CRASH in KINDS[name] and Outage.KILL in KINDS[name]


class Left(Run):
    """A run whose broker says that it has so many messages left."""

    left = 0

    def __init__(self, folder):
        super().__init__(Plan(7, "redis", "q", 3, ()), None, folder, 60.0, print)
        self.server = type("Up", (), {"url": "", "state": "up"})
        self._broker = self._broker._replace(left=lambda url, queue: self.left)


def test_a_message_without_a_complete_attempt_is_noticed(tmp_path):
    run = Left(tmp_path)
    complete = "".join(f"{number} {place} a.{number}\n" for number in (0, 1) for place in range(4))
    # Message 2 has all its leaves, but of two attempts: each of them ended early.
    (tmp_path / "done-1").write_text(f"{complete}2 0 a.2\n2 1 a.2\n")
    (tmp_path / "done-2").write_text("2 2 b.0\n2 3 b.0\n")
    assert run._account() == Account(3, deliveries=4, complete=2, lost=[2]) and not run._is_done()
    (tmp_path / "done-3").write_text(
        "".join(f"{number} {place} c.{number}\n" for number in (1, 2) for place in range(4))
    )
    assert run._account() == Account(3, deliveries=6, complete=4) and run._is_done()
    assert run._account().doubled == 1


def test_leaves_get_their_turns_a_few_at_a_time(tmp_path):
    run = Left(tmp_path)
    with run._turned():
        taken = os.open(tmp_path / TURNS, os.O_RDWR | os.O_NONBLOCK)
        for _ in range(3):
            run._give_turns()
        assert len(os.read(taken, 100)) == 8
        run._give_turns()
        assert len(os.read(taken, 3)) == 3
        run._give_turns()
        assert len(os.read(taken, 100)) == 8
        os.close(taken)


def test_a_broker_that_never_answers_ends_the_run(tmp_path):
    answer = threading.Event()
    run = Left(tmp_path)
    run._deadline_secs = 0.05
    run._broker = run._broker._replace(left=lambda url, queue: answer.wait() and 0)
    with pytest.raises(OutagesError, match=r"seed 7: nobody says what is left in 0\.05 s; the server is up"):
        run._left()
    answer.set()


def test_a_broken_promise_ends_the_program_with_the_seed(monkeypatch, capsys):
    monkeypatch.setattr(__main__, "Server", lambda *_: nullcontext())
    found = Counter({Outage.KILL: 3})
    monkeypatch.setattr(__main__, "survive", lambda plan, server, folder: (Account(600, 610, 601), found))
    assert __main__.main(["--broker", "redis", "--outages", "6"]) == 0
    assert "'runs': 2" in capsys.readouterr().out

    def breaks(plan, server, folder):
        raise OutagesError(f"seed {plan.seed}: 3 messages were lost")

    monkeypatch.setattr(__main__, "survive", breaks)
    assert __main__.main(["--broker", "redis", "--seed", "9"]) == 1
    assert "again: python -m tests.torture.outages --broker redis --seed 9" in capsys.readouterr().out
