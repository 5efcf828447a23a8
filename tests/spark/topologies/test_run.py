"""How a run on Spark begins: its arguments, and the Python of its workers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from acker.errors import ArgumentValueError
from acker.local import Hook
from acker.local.until import parse_until
from acker.spark import run
from acker.spark.topologies.micro_batch_job import MicroBatchJob, _frame_of, _run_stages
from acker.spark.topologies.micro_batch_plan import MicroBatchPlan
from acker.spark.topologies.run import run_until
from acker.spark.topologies.spark_runtime import SparkRuntime
from acker.spark.topologies.stage_plan import plan_stages
from acker.spark.topologies.stage_rows import StageRow
from acker.spark.topologies.tuple_blocks import encode_tuples
from acker.topology import Bolt, Grouping, Topology
from tests.spark.topologies.both import FOLDER, Numbers

pytestmark = pytest.mark.usefixtures("quiet")


class Take(Bolt):
    """Takes numbers."""

    def process(self, tup):
        pass


class Relay(Bolt):
    """Passes numbers on."""

    outputs = ("n",)

    def process(self, tup):
        self.emit([tup.n])


class Taken(Topology):
    """numbers -> take."""

    numbers = Numbers.spec()
    take = Take.spec(inputs=[numbers])


@pytest.mark.spark
def test_a_trigger_that_is_no_duration_is_refused(spark, tmp_path):
    with pytest.raises(ArgumentValueError, match=r"^trigger: expected a duration .*, got '5 secs please'"):
        run(Taken, spark=spark, checkpoint=str(tmp_path), trigger="5 secs please")
    with pytest.raises(ArgumentValueError, match="is for a stream, which needs checkpoint="):
        run(Taken, spark=spark, trigger="5 seconds")


@pytest.mark.spark
def test_plans_show_the_bolts_of_each_stage(spark, capsys):
    numbers = Numbers.spec()
    first = Relay.spec(inputs=[numbers])
    beside = Relay.spec(inputs=[first])
    behind = Take.spec(inputs={beside: Grouping.fields("n")})
    parts = {"numbers": numbers, "first": first, "beside": beside, "behind": behind}
    graph = type("Staged", (Topology,), parts).graph()
    plan = MicroBatchPlan(graph, {}, plan_stages(graph), partitions=2, shards=2, seed=b"seed")
    rows = [StageRow(0, 0, -1, 0, encode_tuples([]))]
    MicroBatchJob(spark, plan, rows, {}, {}, frozenset())._kept.explain()
    assert "MapInArrow first > beside(" in capsys.readouterr().out
    _run_stages(_frame_of(spark, rows), plan, 1, 1).explain()
    assert "MapInArrow behind(" in capsys.readouterr().out


class Told(Hook):
    """Waits for the first ack."""

    def __init__(self):
        self.acked = threading.Event()

    def spout_ack(self, component, task, tup_id, complete_ms):
        self.acked.set()


@pytest.mark.spark
def test_without_a_condition_a_batch_job_goes_on_when_all_is_drained(spark, tmp_path):
    told = Told()
    runtime = SparkRuntime(Taken, {FOLDER: str(tmp_path)}, spark, hooks=[told])
    with ThreadPoolExecutor() as pool:
        ends = pool.submit(run_until, runtime, None, None, None)
        assert told.acked.wait(300)
        assert runtime.lifecycle.until == parse_until(None)
        runtime.stop()
        ends.result()
    runtime.release()
    assert runtime.report().outcome == "stopped"


PROGRAM = textwrap.dedent("""
    from acker.spark import run
    from acker.topology import Bolt, Spout, Topology

    class Numbers(Spout):
        outputs = ["n"]
        def initialize(self, conf, context):
            self.todo = iter(range(3))
        def next_tuple(self):
            for n in self.todo:
                self.emit([n], tup_id=n)
                return
            self.finish()

    class Take(Bolt):
        def process(self, tup):
            pass

    class Taken(Topology):
        numbers = Numbers.spec()
        take = Take.spec(inputs=[numbers])

    print("acked", run(Taken).stats.totals.acked)
""")


def run_program(folder, settings, program=PROGRAM):
    """Run the program in a folder with these environment variables."""
    command = [sys.executable, "-c", program]
    options = {"capture_output": True, "text": True}
    return subprocess.run(command, check=False, cwd=folder, env=settings, **options)


@pytest.fixture
def other_python(tmp_path):
    """The environment where the first python3 of PATH is none that workers could run."""
    wrong = tmp_path / "python3"
    wrong.write_text("#!/bin/sh\nexit 7\n")
    wrong.chmod(0o755)
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    return settings | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}


def test_without_java_the_error_says_what_to_install(tmp_path):
    settings = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    settings |= {"JAVA_HOME": str(tmp_path / "none")}
    ended = run_program(tmp_path, settings)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("acker.errors.SessionError: spark: Spark did not start"), ended.stderr
    assert "JAVA_HOME" in last


# Its bolt stops the run, and then does not end.
ENDLESS = """
import logging
import os
import signal
import threading

from acker.spark import run
from acker.topology import Bolt, Spout, Topology


class One(Spout):
    outputs = ("number",)

    def next_tuple(self):
        self.emit((1,), tup_id=1)
        self.finish()


class Endless(Bolt):
    def initialize(self, conf, context):
        self.driver = conf["user.driver"]

    def process(self, tup):
        os.kill(self.driver, signal.SIGTERM)
        threading.Event().wait()


class Stuck(Topology):
    one = One.spec()
    endless = Endless.spec(inputs=[one])


logging.basicConfig()
conf = {"topology.drain.secs": 0.5, "user.driver": os.getpid()}
report = run(Stuck, conf, checkpoint=CHECKPOINT)
print(report.outcome, report.stats.totals.shut_down)
"""


@pytest.mark.spark
@pytest.mark.parametrize(
    "checkpoint", [pytest.param(None, marks=pytest.mark.slow, id="batch job"), pytest.param("checkpoint", id="stream")]
)
def test_a_program_ends_in_order_when_a_stop_leaves_a_micro_batch_behind(tmp_path, other_python, checkpoint):
    """Its workers run the Python that it runs."""
    path = None if checkpoint is None else str(tmp_path / checkpoint)
    ended = run_program(tmp_path, other_python, ENDLESS.replace("CHECKPOINT", repr(path)))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["stopped", "1"]
    assert "user code" not in ended.stderr
    if checkpoint is None:
        assert "spark is still inside a micro-batch, whose Spark job is cancelled now, and is abandoned" in ended.stderr
