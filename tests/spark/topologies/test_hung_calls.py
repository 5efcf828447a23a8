"""Calls that hang on the workers of Spark: killed workers, stops, several runs, other machines; nothing may be left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker.spark.topologies.run import run_until
from acker.spark.topologies.spark_runtime import SparkRuntime
from tests.spark.topologies.faulty import FAULT, GO, ORDERS, RowShop, Shop, shops_of
from tests.torture.kills.run import environment_of
from tests.ui.fakes import ask

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_SECS = 300


@pytest.fixture
def shops(spark, tmp_path, monkeypatch):
    with shops_of(spark, tmp_path, monkeypatch) as shops:
        yield shops


def view_of(page):
    return json.loads(ask(page, "/api/view")[2])


def wait_for(look):
    """Return what a function returns, once that is true."""
    until = time.monotonic() + PATIENCE_SECS
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


def hung(shop):
    """Return the headline, if it tells of a call that hangs."""
    text = view_of(shop.page)["headline"]["text"]
    return text if " hangs: " in text else None


def tasks_of(shop):
    (table,) = [each for each in view_of(shop.page)["tables"] if each["key"] == "tasks"]
    return table["rows"]


def pid_of(shop):
    """Return the process of the worker whose call hangs."""
    return int(shop.go.with_suffix(".pid").read_text())


def threads_of_workers(spark):
    """Return the names of the threads of the workers that Spark uses again."""

    def names(batches):
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": [each.name for each in threading.enumerate()]})

    rows = spark.range(8, numPartitions=2).mapInArrow(names, "name string").collect()
    return {row.name for row in rows}


def test_the_watchdog_names_the_call_and_nothing_is_left_in_the_workers(spark, shops) -> None:
    shop = shops.start("hung", **{"topology.message.timeout.secs": 10})
    wait_for(lambda: hung(shop))
    stalls = wait_for(lambda: [each["text"] for each in view_of(shop.page)["events"] if "nothing was" in each["text"]])
    report = shop.end()
    assert "charge[2] has been in process() with a tuple of orders (message order-7) for" in stalls[0]
    assert f"{os.sep}faulty.py:" in stalls[0] and stalls[0] in report.stalls
    assert report.stats.totals.acked == ORDERS and not report.stats.totals.failed
    assert not [name for name in threads_of_workers(spark) if "watch" in name]


def test_a_worker_that_is_killed_in_its_call_is_not_shown_any_longer(shops) -> None:
    shop = shops.start("hung")
    wait_for(lambda: hung(shop))
    killed = pid_of(shop)
    os.kill(killed, signal.SIGKILL)
    # Spark tries again, and the call of the next attempt hangs.
    wait_for(lambda: pid_of(shop) != killed and hung(shop) and len(tasks_of(shop)) == 1)
    assert shop.end().stats.totals.acked == ORDERS


def test_two_runs_of_a_session_have_the_calls_of_their_own_workers(shops) -> None:
    both = [shops.start("hung"), shops.start("slow")]
    assert "(message order-7) " in wait_for(lambda: hung(both[0]))

    def shown():
        tasks = [tasks_of(shop) for shop in both]
        return tasks if all(tasks) else None  # those of a worker that stands still for seconds are not there

    (mine,), (other,) = wait_for(shown)
    assert mine[0] != other[0] and mine[4] == "a tuple of orders (message order-7)"
    assert [shop.end().stats.totals.acked for shop in both] == [ORDERS] * 2


def test_of_a_row_of_a_dataframe_in_a_coroutine_the_root_id_is_named(shops) -> None:
    shop = shops.start("hung", RowShop)
    # The coroutine is the first of its bolt, so only the timeout says that it hangs.
    (task,) = wait_for(lambda: [row for row in tasks_of(shop) if row[7]])
    assert task[3] == "charge[2]" and task[4].startswith("a tuple of orders (root id ")
    assert task[7].startswith("faulty.py:") and task[7].endswith(" in ChargeLater.process")
    assert shop.end().stats.totals.acked == ORDERS


def test_a_stop_while_a_worker_hangs_leaves_nothing_behind(spark, tmp_path) -> None:
    go = tmp_path / "go"
    conf = {GO: str(go), FAULT: "hung", "topology.drain.secs": 0}
    runtime = SparkRuntime(Shop, conf, spark)
    with ThreadPoolExecutor() as pool:
        ends = pool.submit(run_until, runtime, None, None, None)
        wait_for(runtime.batches.progress.reports)
        runtime.stop()
        runtime.cancel_jobs()
        runtime.release()
        ends.result()
    assert runtime.report().abandoned
    assert not [name for name in threads_of_workers(spark) if "watch" in name]


PROGRAM = """
    import sys
    from pathlib import Path

    from pyspark.sql import SparkSession

    from acker.spark import ship
    from acker.spark.topologies.run import run_until
    from acker.spark.topologies.spark_runtime import SparkRuntime
    from tests.spark.topologies.faulty import FAULT, GO, Shop

    def look(runtime):
        while not (found := runtime.batches.progress.calls(lambda root_id: "message")):
            pass
        return found

    if __name__ == "__main__":
        spark = SparkSession.builder.master("local-cluster[2,1,1024]").getOrCreate()
        ship(spark)
        go = Path(sys.argv[1])
        runtime = SparkRuntime(Shop, {GO: str(go), FAULT: "hung"}, spark)
        runtime.watch_for("drained")
        runtime.start()
        runtime.start_batches()
        (call,) = look(runtime).values()
        go.touch()
        print(call, runtime.run_until("drained"), runtime.report().stats.totals.acked, sep=" | ")
        runtime.stop()
        runtime.release()
        spark.stop()
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_workers_elsewhere_that_acker_was_sent_to_report_to_the_driver(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    ran = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "go")],
        env=environment_of(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    call, outcome, acked = ran.stdout.strip().splitlines()[-1].split(" | ")
    assert call.startswith("charge[2] with a tuple of orders (message), for ") and "faulty.py:" in call
    assert (outcome, acked) == ("drained", str(ORDERS))
