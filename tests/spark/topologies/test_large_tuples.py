"""Large tuples: micro-batches are bounded by bytes, and a JVM that dies of them is told from other errors, at once."""

from __future__ import annotations

import gc
import logging
import re
import socket
import subprocess
import sys
import textwrap
import weakref
from collections import deque
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JNetworkError

from acker.errors import ConfError, RuntimeStateError, TopologyError
from acker.spark import run
from acker.spark.topologies import jvm as jvm_module
from acker.spark.topologies import micro_batch_job, micro_batches
from acker.spark.topologies.jvm import Jvm, Load, free_dropped
from acker.spark.topologies.micro_batch_job import MicroBatchJob
from acker.spark.topologies.spark_runtime import SparkRuntime
from acker.spark.topologies.stage_rows import StageRow
from acker.topology import Bolt, Spout, Topology
from acker.topology.tuples import TupleSource
from tests.torture.kills.run import environment_of

pytestmark = pytest.mark.timeout(900)

SIZE, COUNT = 30_000, 20
BYTES = "topology.spark.batch.bytes"


class Large(Spout):
    """Tuples of one size, and a last one that is larger than a micro-batch."""

    outputs = ("n", "body")

    def initialize(self, conf, context):
        self.sizes = [10 * SIZE, *[SIZE] * COUNT]

    def next_tuple(self):
        if not self.sizes:
            self.finish()
            return
        self.emit([len(self.sizes), bytes(self.sizes.pop())], tup_id=len(self.sizes))


class Take(Bolt):
    def process(self, tup):
        assert len(tup.body) in {SIZE, 10 * SIZE}


class Taken(Topology):
    large = Large.spec()
    take = Take.spec(inputs=[large])


@pytest.mark.spark
def test_a_micro_batch_ends_at_its_bytes_and_a_larger_tuple_passes_alone(spark, caplog):
    caplog.set_level(logging.INFO, "acker.spark")
    report = run(Taken, {BYTES: 100_000}, spark=spark)
    assert report.stats.totals.acked == COUNT + 1
    acked = [int(found) for found in re.findall(r"micro-batch \d+: (\d+) trees acked, 0 failed", caplog.text)]
    assert max(acked) == 3 and acked[-1] == 1 and sum(acked) == COUNT + 1


@pytest.mark.spark
@pytest.mark.usefixtures("quiet")
def test_a_tuple_that_spark_cannot_take_is_named_with_its_size_and_the_limit(spark, monkeypatch):
    monkeypatch.setattr(micro_batches, "_BLOCK_MAX", 10 * SIZE)
    with pytest.raises(TopologyError, match=r"component 'large': it has emitted a tuple of 300,\d+ bytes.* 300,000;"):
        run(Taken, {BYTES: 100_000}, spark=spark)


@pytest.mark.spark
def test_the_jvm_does_not_keep_the_tuples_of_micro_batches_that_have_ended(spark, monkeypatch):
    """What it keeps are the DataFrames that Python has not dropped."""
    frames = []
    make_frame = micro_batch_job._frame_of

    def kept(*arguments):
        frame = make_frame(*arguments)
        frames.append(weakref.ref(frame))
        return frame

    monkeypatch.setattr(micro_batch_job, "_frame_of", kept)
    monkeypatch.setattr(micro_batches, "_FREE_BYTES", 1)
    gc.disable()
    try:
        run(Taken, {BYTES: 100_000}, spark=spark)
    finally:
        gc.enable()
    assert len(frames) > 5 and not [frame for frame in frames[:-1] if frame() is not None]


@pytest.mark.spark
def test_the_jvm_frees_at_once_what_python_has_dropped(spark, monkeypatch):
    """Py4J's own thread looks once a second; here it never does."""
    monkeypatch.setattr(spark.sparkContext._gateway._gateway_client, "finalizer_deque", deque())
    java = spark._jvm.java.lang
    dropped = java.Object()
    seen_by_jvm = java.ref.WeakReference(dropped)
    del dropped
    free_dropped(spark)
    java.System.gc()
    assert seen_by_jvm.get() is None


@pytest.mark.spark
def test_large_tuples_are_tasks_of_their_own(spark):
    """Whatever else is in the micro-batch, a task has one of them, in few copies."""
    option = "spark.sql.execution.arrow.localRelationThreshold"
    before = spark.conf.get(option, None)
    rows = [StageRow(0, 0, -1, seq, bytes(4_000_000)) for seq in range(5)]
    assert micro_batch_job._frame_of(spark, rows).rdd.getNumPartitions() == 5
    assert spark.conf.get(option, None) == before


def test_large_tuples_travel_in_values_of_a_good_size(monkeypatch):
    monkeypatch.setattr(micro_batches, "_ROW_BYTES", 100_000)
    source = TupleSource("large", "default", 1, ["body"])
    tuples = [source.tuple_type(source.make_values([bytes(SIZE)]), source, {root: root}) for root in range(1, 10)]
    chunks = [(3, tuples[:2]), (4, tuples[2:7]), (3, tuples[7:])]
    parts = list(micro_batches._parts_of(chunks, 9 * SIZE))
    assert [sum(len(of_task) for _, of_task in part) for part in parts] == [4, 4, 1]
    assert [tup for part in parts for _, of_task in part for tup in of_task] == tuples
    assert [[task for task, _ in part] for part in parts] == [[3, 4], [4, 3], [3]]
    assert list(micro_batches._parts_of(chunks, 99_000)) == [chunks]


@pytest.mark.parametrize("value", [0, 1.5, 2_000_000_000])
def test_the_bound_is_checked(value):
    with pytest.raises(ConfError, match=r"topology.spark.batch.bytes.*expected an int from 1 to 1000000000 or None"):
        type("Bad", (Taken,), {"config": {BYTES: value}}).graph()


@pytest.mark.parametrize(("memory", "bound"), [(384 << 20, 40_265_318), (512 << 20, 53_687_091), (8 << 30, 64_000_000)])
def test_the_bound_is_a_tenth_of_the_memory_of_the_jvm_and_at_most_64_mb(memory, bound):
    assert jvm_of(None, memory=memory).batch_bytes == bound


@pytest.mark.spark
def test_a_run_takes_the_bound_from_the_memory_of_its_jvm(spark, monkeypatch):
    monkeypatch.setattr(jvm_module, "_BATCH_BYTES_MAX", 100_000)
    taken = SparkRuntime(Taken, {"topology.drain.secs": 0}, spark)
    try:
        taken.start()
        assert taken.executors.spark.batch_bytes == 100_000
    finally:
        taken.stop()
        taken.release()


@pytest.mark.spark
@pytest.mark.usefixtures("quiet", "full_batches")
@pytest.mark.parametrize(
    ("fault", "died", "told"),
    [
        (ConnectionRefusedError("refused"), True, "died in it"),
        (Py4JNetworkError("java.lang.OutOfMemoryError: Java heap space"), False, "had no memory left for it"),
        (ConnectionRefusedError("refused"), False, None),
    ],
    ids=["dead", "out of memory", "alive"],
)
def test_a_micro_batch_that_a_jvm_does_not_do_says_what_it_had_and_what_mends_it(spark, monkeypatch, fault, died, told):
    def evaluate(self, excluded, seed):
        monkeypatch.setattr(Jvm, "has_died", lambda self, fault=None: died)
        raise fault

    monkeypatch.setattr(MicroBatchJob, "evaluate", evaluate)
    with pytest.raises(RuntimeStateError if told else ConnectionRefusedError) as raised:
        run(Taken, {BYTES: 100_000}, spark=spark)
    if told:
        memory = spark.sparkContext.getConf().get("spark.driver.memory", "1g")
        assert re.search(
            r"micro-batch 0 \(3 tuples of spouts, 9\d,\d+ bytes, the largest of 30,\d+ from 'large'\)",
            str(raised.value),
        )
        for part in (told, f"spark.driver.memory is {memory}", f"{BYTES} (now 100,000) lower", "the same tuples again"):
            assert part in str(raised.value)
        assert raised.value.__cause__ is fault


# ---- whether a JVM has died ------------------------------------------------------------------------------------------


def jvm_of(process, port=1, is_stopped=lambda: False, memory=1 << 30, **options):
    """Return a JVM that is a process, or a port."""
    runtime = SimpleNamespace(maxMemory=lambda: memory)
    java = SimpleNamespace(lang=SimpleNamespace(Runtime=SimpleNamespace(getRuntime=lambda: runtime)))
    address = SimpleNamespace(address="127.0.0.1", port=port)
    gateway = SimpleNamespace(proc=process, gateway_parameters=address, jvm=SimpleNamespace(java=java))
    conf = SimpleNamespace(get=options.get)
    jsc = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=is_stopped))
    context = SimpleNamespace(_gateway=gateway, getConf=lambda: conf, _jsc=jsc)
    return Jvm(SimpleNamespace(sparkContext=context))


def refuse():
    raise ConnectionRefusedError


class UnreadableError(Exception):
    """As Py4J's errors, whose text is in the JVM."""

    def __str__(self):
        return refuse()


def of_cause(fault, cause):
    fault.__cause__ = cause
    return fault


@pytest.mark.parametrize(
    "fault",
    [
        ValueError("java.lang.OutOfMemoryError: GC overhead limit exceeded"),
        ValueError("org.apache.spark.memory.SparkOutOfMemoryError: no room"),
        ValueError("[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 65536 bytes of memory, got 0"),
        ValueError("ExecutorLostFailure (executor 1 exited): Command exited with code 52, exit code 52"),
        of_cause(UnreadableError(), ValueError("Caused by: java.lang.OutOfMemoryError: Java heap space")),
    ],
    ids=["collector", "Spark's own", "an operator's", "an executor's", "the cause"],
)
def test_each_form_of_an_error_without_memory_is_known(fault):
    with socket.create_server(("127.0.0.1", 0)) as server:
        jvm = jvm_of(None, server.getsockname()[1], **{"spark.master": "yarn"})
        assert jvm.is_to_blame(fault) and not jvm.is_to_blame(ValueError("a bolt's"))
        told = str(jvm.death(Load(3), 5, fault))
    assert "had no memory left for it; spark.driver.memory is 1g, spark.executor.memory 1g" in told


@pytest.mark.parametrize("is_stopped", [lambda: True, refuse], ids=["stopped", "its JVM does not answer"])
def test_a_job_that_ends_since_the_jvm_does_waits_for_that_end(is_stopped):
    """A task without memory ends the JVM; jobs end first, with "cancelled because SparkContext was shut down"."""
    fault = UnreadableError()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        jvm = jvm_of(process, is_stopped=is_stopped)
        process.stdin.close()
        assert jvm.is_to_blame(fault)
        assert "Spark's JVM died in it" in str(jvm.death(Load(3), 5, fault))


def test_a_context_that_stopped_in_a_jvm_that_lives_is_named(monkeypatch):
    monkeypatch.setattr(jvm_module, "_DYING_SECS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
            jvm, fault = jvm_of(process, port, is_stopped=lambda: True), ValueError("SparkContext was shut down")
            assert jvm.is_to_blame(fault)
            assert "Spark's JVM stopped Spark in it" in str(jvm.death(Load(3), 5, fault))
            process.kill()


def test_a_process_that_has_ended_is_a_dead_jvm():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        jvm = jvm_of(process)
        assert not jvm.has_died() and not jvm.has_died(ValueError())
        process.kill()
        assert jvm.has_died(ConnectionResetError())  # it waits for the end of what has lost its connections
        assert jvm.has_died()
    assert "Spark's JVM died in it; spark.driver.memory is 1g" in str(jvm.death(Load(3), 5))


def test_a_fault_of_a_connection_to_a_jvm_that_lives_is_no_death(monkeypatch):
    monkeypatch.setattr(jvm_module, "_DYING_SECS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
            assert not jvm_of(process, port).has_died(Py4JNetworkError("Answer from Java side is empty"))
            process.kill()
        assert not jvm_of(None, port).has_died()
    assert jvm_of(None, port).has_died()  # nobody listens there any more


# ---- real ones -------------------------------------------------------------------------------------------------------

PROGRAM = textwrap.dedent("""
    import os, signal, sys, traceback
    from pyspark.sql import SparkSession
    from acker.spark import run
    from acker.topology import Bolt, ReliableSpout, Topology

    size, count, bound, kills, memory = map(int, sys.argv[2:])

    class Large(ReliableSpout):
        outputs = ["body"]

        def initialize(self, conf, context):
            self.left = count

        def next_tuple(self):
            if not self.left:
                self.finish()
                return
            self.left -= 1
            self.emit([bytes(size)], tup_id=self.left)

    class Take(Bolt):
        def initialize(self, conf, context):
            self.victim = conf["user.victim"]

        def process(self, tup):
            if self.victim:
                os.kill(self.victim, signal.SIGKILL)

    class Taken(Topology):
        large = Large.spec()
        take = Take.spec(inputs=[large])

    if __name__ == "__main__":
        builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        builder = builder.config("spark.driver.memory", f"{memory}m")
        # Spark itself refuses a driver of less than 450 MB, of which it would keep 300 MB.
        spark = builder.config("spark.testing.reservedMemory", 100_000_000).getOrCreate()
        victim = spark.sparkContext._gateway.proc.pid if kills else 0
        conf = {"user.victim": victim, "topology.spark.batch.bytes": bound or None, "topology.drain.secs": 3600}
        try:
            print("acked", run(Taken, conf, spark=spark, checkpoint=sys.argv[1] or None).stats.totals.acked)
        except Exception as fault:
            traceback.print_exc()
            print("ended by", type(fault).__name__, fault)
""")


def run_program(tmp_path, expected, *arguments, memory=512):
    """Run the program; fail with all that it has said, whole, if a pattern is not in it."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), *map(str, arguments), str(memory)]
    done = subprocess.run(
        command, env=environment_of(tmp_path), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    if not re.search(expected, done.stdout):
        pytest.fail(f"{expected!r} is not in this:\n{done.stderr}\n{done.stdout}", pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [pytest.param(384, marks=pytest.mark.soak), 512])
def test_forty_tuples_of_10_mb_pass_through_a_small_driver(tmp_path, memory):
    run_program(tmp_path, "acked 40", "", 10_000_000, 40, 0, 0, memory=memory)


@pytest.mark.slow
def test_a_jvm_without_memory_ends_a_run_and_names_the_micro_batch(tmp_path):
    told = r"ended by RuntimeStateError micro-batch \d+ \(.* bytes, .*\): Spark's JVM .*; spark.driver.memory is 192m"
    run_program(tmp_path, told, "", 10_000_000, 40, 400_000_000, 0, memory=192)


@pytest.mark.slow
@pytest.mark.parametrize("is_stream", [False, True], ids=["batch job", "stream"])
def test_the_death_of_the_jvm_ends_a_run_at_once_and_names_the_micro_batch(tmp_path, is_stream):
    checkpoint = tmp_path / "checkpoint" if is_stream else ""
    told = (
        r"ended by RuntimeStateError micro-batch \d \(\d tuples of spouts, .*Spark's JVM died in it;"
        " spark.driver.memory is 512m"
    )
    run_program(tmp_path, told, checkpoint, 1000, 5, 64_000_000, 1)
