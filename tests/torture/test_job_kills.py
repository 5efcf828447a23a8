"""Kills under trees of Celery's tasks, and what their account would notice."""

from collections import Counter
from contextlib import nullcontext

import pytest

from tests.servers import Server
from tests.torture.job_kills import __main__
from tests.torture.job_kills.run import Account, Kill, KillsError, Run, plan_of, survive
from tests.torture.job_kills.truth import Notes, Truth

KILLS = 2  # of each kind; `make soak` has 100


def kills_on(name, broker, tmp_path, seed):
    """Kill each of what takes part so often, and return the account."""
    with Server(name, tmp_path / "told") as replies:
        plan = plan_of(seed, name, KILLS)
        account, happened = survive(plan, broker, replies, tmp_path / "run")
    assert happened == Counter(dict.fromkeys(Kill, KILLS))
    assert account.executions >= 7 * plan.orders


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kills_with_celery_on_redis_lose_no_message_and_none_is_acked_early(redis, tmp_path):
    kills_on("redis", redis, tmp_path, 21)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kills_with_celery_on_rabbitmq_lose_no_message_and_none_is_acked_early(rabbitmq, tmp_path):
    kills_on("rabbitmq", rabbitmq, tmp_path, 22)


# ---- plans, and what would be noticed -------------------------------------------------------------------------------


def test_a_plan_is_that_of_its_seed():
    plan = plan_of(7, "redis", 3)
    assert plan == plan_of(7, "redis", 3) != plan_of(8, "redis", 3)
    assert Counter(kind for kind, _ in plan.kills) == Counter(dict.fromkeys(Kill, 3))


@pytest.fixture
def notes(tmp_path):
    notes = Notes(tmp_path)
    yield notes
    notes.close()


def test_an_attempt_is_done_when_one_execution_of_each_job_is_complete(notes, tmp_path):
    truth = Truth(tmp_path)

    def is_done():
        truth.read()
        return truth.is_done(5)

    notes.begun(5, "root")
    # Two executions of the root: that one of them is done, and a pack of the other one, is not enough.
    notes.executed("root", ["lamp"])
    notes.executed("root", ["rug", "vase"])
    assert not is_done()
    notes.executed("rug", [])
    assert not is_done()
    notes.executed("lamp", ["post"])
    assert not is_done()
    notes.executed("post", [])
    assert is_done() and truth.lines == 5 and not truth.is_done(6)


def test_a_line_that_is_half_there_is_read_when_it_is_whole(tmp_path):
    truth = Truth(tmp_path)
    path = tmp_path / "lines-1"
    path.write_text("attempt 5 root\nro")
    truth.read()
    assert (truth.lines, truth.attempts) == (0, {5: ["root"]})
    path.write_text("attempt 5 root\nroot \n")
    truth.read()
    assert truth.is_done(5)


def test_an_early_ack_and_a_lost_message_are_noticed(notes, tmp_path):
    notes.begun(0, "root")
    notes.executed("root", [])
    notes.broken("message 1 was acked early")
    down = type("Down", (), {"state": "down"})
    account = Run(plan_of(7, "redis", 1), down, down, tmp_path, 1.0, print)._account()
    assert account.early == ["message 1 was acked early"]
    assert account.lost == [*range(1, account.orders)]


def test_a_broken_promise_ends_the_program_with_the_seed(monkeypatch, capsys):
    monkeypatch.setattr(__main__, "Server", lambda *_: nullcontext())
    found = Counter(dict.fromkeys(Kill, 10))
    monkeypatch.setattr(__main__, "survive", lambda plan, *_, say: (Account(250, 300, 2000), found))
    assert __main__.main(["--broker", "redis", "--kills", "20"]) == 0
    assert "'runs': 2" in capsys.readouterr().out

    def breaks(plan, *_, say):
        raise KillsError(f"{plan.broker}, seed {plan.seed}: 3 messages were lost")

    monkeypatch.setattr(__main__, "survive", breaks)
    assert __main__.main(["--broker", "rabbitmq", "--seed", "9"]) == 1
    assert "again: python -m tests.torture.job_kills --broker rabbitmq --seed 9" in capsys.readouterr().out
