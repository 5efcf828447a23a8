"""acker through Spark Connect: tests of this folder once more, over a server that is started for them.

In processes of their own: once PySpark has spoken to a server, its functions do so everywhere in the process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import acker
from tests.torture.shipping import CLUSTER, clean_environment, make_environment
from tests.torture.spark_home import JVM_OPTIONS, make_spark_home

HERE = Path(__file__).parent
SERVER = "local[2,4]"  # tasks are retried, as on a cluster

# Each way into Spark: rows, files, blocks, pipelines, streams of rows, of files and of pipelines, a sink.
SELECTION = (
    "test_completion_functions.py::test_a_doubled_track_is_harmless_wherever_it_lies",
    "test_completion_functions.py::test_completions_have_the_schema",
    "test_completion_functions.py::test_a_worker_that_is_killed_is_replaced_and_nothing_counts_twice",
    "test_block_settlement.py::test_blocks_that_are_wrong_fail_the_job_and_say_why",
    "pipelines/test_tracked.py::test_each_tree_ends_as_its_rows_did",
    "pipelines/test_tracked.py::test_a_tree_that_forks_and_meets_again_finishes",
    "streams/test_plan.py::test_any_stream_cut_anywhere_ends_as_the_rules_say[well-formed]",
    "streams/test_plan.py::test_trees_time_out_without_a_message_and_available_now_ends",
    "streams/test_plan.py::test_other_ways_into_a_stream_end_in_a_table",
    "streams/test_sinks.py::test_the_function_may_run_in_another_process",
    "streams/test_replays.py::test_the_ledger_may_be_written_by_another_process",
)

# On executors that lack acker: before it is sent, after, and a stream, whose first Python is the server's.
SHIPPED = """
import sys, warnings
sys.path.insert(0, {package!r})
warnings.simplefilter("ignore")
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
import acker.spark as aspark
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF

spark = SparkSession.builder.remote({server!r}).config("spark.ui.enabled", "false").getOrCreate()
rows = [(0, 7, 100, 0, 42), (2, 7, 100, None, None)]
schema = "kind tinyint, root_id bigint, value bigint, task_id int, message_id bigint"
spark.createDataFrame(rows, schema).coalesce(1).write.parquet("messages")

def told(job):
    try:
        return job()
    except PySparkException as fault:
        return [line for line in str(fault).splitlines() if line.startswith("ImportError: ")][0]

def batch():
    return [row.message_id for row in aspark.completions_from_files(spark, "messages").collect()]

def stream():
    spark.conf.set(PROVIDER_CONF, PROVIDER)
    done = aspark.completions_from_files(spark, "messages", streaming=True, timeout="1 hour", shards=2)
    writer = done.writeStream.format("noop").option("checkpointLocation", "checkpoint").trigger(availableNow=True)
    writer.start().awaitTermination()

print("rows:", [row.message_id for row in aspark.completions(spark.read.parquet("messages")).collect()])
print("before:", told(batch))
aspark.ship(spark)
aspark.ship(spark)
print("after:", told(batch))
print("stream:", told(stream))
spark.stop()
"""

# A row that hangs until somebody has read what the worker says.
HANGS = """
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import acker.spark as aspark

def parse(row):
    while row.id == 7 and not Path({go!r}).exists():
        time.sleep(0.01)
    return [row.id]

spark = SparkSession.builder.remote({server!r}).config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(20, numPartitions=1)
pipeline = aspark.spout(rows, message_id="id", run_seed=1).bolt(parse, schema="id long", sink=True)
print(pipeline.data().count())
spark.stop()
"""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.slow]


def test_what_works_in_a_session_works_through_a_server() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(str(HERE / name) for name in SELECTION),
    ]
    # Options for this run of pytest are not for the other one, whose last line is read.
    environment = {**os.environ, "ACKER_TESTS_REMOTE": SERVER, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-8000:]
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert passed is not None and int(passed[1]) >= len(SELECTION)


def test_acker_is_sent_to_the_executors_of_a_server(tmp_path) -> None:
    lacking = make_environment(tmp_path / "lacking", linked=True)
    code = SHIPPED.format(package=str(Path(acker.__file__).resolve().parents[1]), server=CLUSTER)
    variables = {"PYSPARK_PYTHON": str(lacking), "SPARK_HOME": str(make_spark_home(tmp_path / "server"))}
    variables["JAVA_TOOL_OPTIONS"] = JVM_OPTIONS
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**clean_environment(), **variables},
        cwd=tmp_path,
    )
    said = dict(line.partition(": ")[::2] for line in done.stdout.splitlines() if line.partition(": ")[1])
    assert done.returncode == 0, done.stderr[-8000:]
    assert said["rows"] == "[42]", "in a batch of rows nothing runs in Python"
    refusal = "ImportError: acker cannot be imported by the Python of this worker"
    assert said["before"].startswith(refusal)
    assert said["after"] == "[42]"
    assert said["stream"].startswith(refusal)


def test_the_executors_stderr_names_a_row_that_hangs(tmp_path) -> None:
    go = tmp_path / "go"
    program = tmp_path / "program.py"
    program.write_text(HANGS.format(go=str(go), server=SERVER))
    variables = {"PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": JVM_OPTIONS}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, str(program)], env={**os.environ, **variables}, **pipes) as running:
        said = []
        for line in running.stderr:
            said.append(line)
            if " hangs on " in line:
                go.touch()
        counted = running.stdout.read()
    assert running.returncode == 0, "".join(said)[-8000:]
    assert counted.strip() == "20"
    (told,) = [line for line in said if " hangs on " in line]
    assert told.startswith("acker: parse hangs on ") and " with row 8 of its task (root id " in told
    assert f" at {program}:" in told
