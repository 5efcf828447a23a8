"""A topology as a stream whose processes get ``kill -9``: no line is lost, and none is counted twice."""

import pytest

from tests.torture.kills import CLUSTER, LOCAL
from tests.torture.topology_kills import Program
from tests.torture.topology_kills.words import BAD, FLAKY, KILL_COUNTING, KILL_EXECUTOR, KILL_WORKER, SOUR

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"]


def lines_of(count, special):
    """Return lines of three words, some of them with a further one."""
    lines = [" ".join(WORDS[(number + place) % len(WORDS)] for place in range(3)) for number in range(count)]
    for number, word in special.items():
        lines[number] += f" {word}"
    return lines


def test_a_driver_that_is_killed_again_and_again_counts_each_line_once(tmp_path):
    special = {3: BAD, 11: SOUR, 20: f"{FLAKY}-1", 45: BAD, 47: SOUR, 61: f"{FLAKY}-2", 90: SOUR, 130: f"{FLAKY}-3"}
    program = Program(tmp_path / "run", lines_of(160, special), LOCAL)
    program.dies("planned", 1)
    program.dies("before an ack is kept", 7)  # in the recovery
    program.dies("evaluated", 2)
    program.dies("committed", 2)
    program.dies("after a dead letter was kept", 1)
    account = program.ends()
    assert (account.acked, account.dead) == (155, 5)
    assert account.told_again > 0


def test_workers_and_executors_that_are_killed_change_nothing(tmp_path):
    special = {5: f"{KILL_WORKER}-1", 9: BAD, 30: f"{KILL_EXECUTOR}-1", 44: f"{KILL_COUNTING}-1", 70: f"{FLAKY}-1"}
    special |= {81: SOUR, 85: f"{KILL_EXECUTOR}-2", 99: f"{KILL_WORKER}-2"}
    program = Program(tmp_path / "run", lines_of(120, special), CLUSTER)
    program.dies("before the commit", 2)
    account = program.ends()
    assert (account.acked, account.dead) == (118, 2)
