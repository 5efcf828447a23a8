"""A topology with state on a standalone cluster: a master and two workers, processes of their own on this machine.

Soak, since tests/spark/test_clusters.py has such a cluster without a disk in common.
"""

from __future__ import annotations

import pytest

from tests.spark.cluster_kit import standalone
from tests.spark.topologies.test_kills import lines_of
from tests.torture.topology_kills import Program
from tests.torture.topology_kills.words import BAD, FLAKY, KILL_EXECUTOR, SOUR

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.soak]


@pytest.mark.minutes(2)
def test_a_topology_with_state_counts_each_line_once_on_two_workers(tmp_path):
    special = {4: BAD, 9: f"{FLAKY}-1", 30: f"{KILL_EXECUTOR}-1", 47: SOUR}
    with standalone(tmp_path, ["one", "other"]) as (address, workers):
        program = Program(tmp_path / "run", lines_of(80, special), address)
        program.dies("committed", 2)
        account = program.ends()
        for worker in workers:
            worker.wait_for("Asked to launch executor", 2)  # one for each driver
    assert (account.acked, account.dead) == (78, 2)
