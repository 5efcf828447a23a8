"""acker through Spark Connect and in a notebook: tests of this folder once more, and the table of what works there.

In processes of their own: once PySpark has spoken to a server, its functions do so everywhere in the process.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import acker
from tests.conftest import IN_NOTEBOOK, REMOTE
from tests.torture.shipping import CLUSTER, clean_environment, make_environment
from tests.torture.spark_home import JVM_OPTIONS, make_spark_home

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SERVER = "local[2,4]"  # tasks are retried, as on a cluster

# What the table in docs/compatibility.md says of each way into Spark, and the tests that show it.
SELECTION = {
    "batches of rows, files and blocks": (
        "test_completion_functions.py::test_completions_have_the_schema",
        "test_completion_functions.py::test_a_worker_that_is_killed_is_replaced_and_nothing_counts_twice",
    ),
    "pipelines of bolts": ("pipelines/test_tracked.py::test_a_tree_that_forks_and_meets_again_finishes",),
    "steps that Spark runs": ("pipelines/test_sql_steps.py::test_steps_in_sql_and_in_python_follow_each_other",),
    "joins of two pipelines": ("pipelines/test_tracked_joins.py::test_outcomes_of_a_join_are_those_of_nested_loops",),
    "`grouped(...).agg(...)`": (
        "pipelines/test_aggregated.py::test_groups_have_the_rows_that_a_plain_loop_puts_there[items_in_sql]",
    ),
    "`unfinished()`": (
        "pipelines/test_unfinished.py::test_what_is_not_finished_comes_with_its_row_and_can_be_sent_again",
    ),
    "streams of rows, files and pipelines": ("streams/test_plan.py::test_other_ways_into_a_stream_end_in_a_table",),
    "`for_each_completion`, `Replays`": (
        "streams/test_sinks.py::test_the_function_may_run_in_another_process",
        "streams/test_replays.py::test_the_ledger_may_be_written_by_another_process",
    ),
}

# A notebook whose session was made before, with executors that are processes of their own.
NOTEBOOK = """
import sys
from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(cwd={cwd!r})
try:
    for cell in {cells!r}:
        reply = client.execute_interactive(cell, timeout=3600)["content"]
        if reply["status"] != "ok":
            sys.exit(chr(10).join(reply.get("traceback", [str(reply)])))
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
"""
MADE_BEFORE = """
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local-cluster[1,2,1024]").config("spark.ui.enabled", "false")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
for name in ("spark.sql.shuffle.partitions", "spark.default.parallelism"):
    builder = builder.config(name, "2")
builder.config("spark.sql.warehouse.dir", "warehouse").getOrCreate().sparkContext.setLogLevel("OFF")
"""
CELL = """
import pytest

pytest.main({arguments!r})
"""

# On executors that lack acker: before it is sent, after, and a stream, whose first Python is the server's.
SHIPPED = """
import sys, warnings
sys.path[:0] = {paths!r}
warnings.simplefilter("ignore")
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
import acker.spark as aspark
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from tests.spark.connect_kit import on_a_free_port

builder = on_a_free_port(SparkSession.builder.remote({server!r}))
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
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
from tests.spark.connect_kit import on_a_free_port

def parse(row):
    while row.id == 7 and not Path({go!r}).exists():
        time.sleep(0.01)
    return [row.id]

builder = on_a_free_port(SparkSession.builder.remote({server!r}))
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
rows = spark.range(20, numPartitions=1)
pipeline = aspark.spout(rows, message_id="id", run_seed=1).bolt(parse, schema="id long", sink=True)
print(pipeline.data().count())
spark.stop()
"""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600), pytest.mark.slow]


def run_selection(kind: str, tmp_path) -> dict[str, str]:
    """Run the selected tests with Spark Connect or in a notebook; return what the table says of each row."""
    selected = [str(HERE / name) for names in SELECTION.values() for name in names]
    arguments = ["-q", "-rA", "--color=no", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *selected]
    command = [sys.executable, "-m", "pytest", *arguments]
    # Options for this run of pytest are not for the other one, whose lines are read.
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    if kind == "connect":
        environment[REMOTE] = SERVER
    else:
        cells = [MADE_BEFORE, CELL.format(arguments=["-c", str(ROOT / "pyproject.toml"), *arguments])]
        command = [sys.executable, "-c", NOTEBOOK.format(cwd=str(tmp_path), cells=cells)]
        environment |= {IN_NOTEBOOK: "1", "PYSPARK_PYTHON": sys.executable, "JAVA_TOOL_OPTIONS": JVM_OPTIONS}
        environment["SPARK_HOME"] = str(make_spark_home(tmp_path / "home"))
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    passed = re.findall(r"^PASSED (?:\S*/)?tests/spark/(\S+)", done.stdout, re.MULTILINE)

    def works(name: str) -> bool:
        return any(each == name or each.startswith(f"{name}[") for each in passed)

    # A test that is skipped shows nothing.
    all_passed = re.search(r"^\d+ passed(, \d+ warnings?)? in ", done.stdout, re.MULTILINE)
    assert all_passed, f"{done.stdout[-8000:]}{done.stderr[-8000:]}"
    return {row: "yes" if all(map(works, names)) else "no" for row, names in SELECTION.items()}


@pytest.fixture(scope="module")
def page_rows() -> dict[str, list[str]]:
    """The table of the page: the cells of each row."""
    text = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    _, _, table = text.partition("| | Spark Connect | a notebook |\n|---|---|---|\n")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.partition("\n\n")[0].splitlines()]
    return {name: cells for name, *cells in rows}


@pytest.mark.minutes(7)
@pytest.mark.parametrize("kind", ["connect", pytest.param("notebook", marks=pytest.mark.soak)])
def test_the_table_says_what_works(kind, page_rows, tmp_path) -> None:
    column = ["connect", "notebook"].index(kind)
    assert {name: cells[column] for name, cells in page_rows.items()} == run_selection(kind, tmp_path)


@pytest.mark.soak
@pytest.mark.minutes(2)
def test_acker_is_sent_to_the_executors_of_a_server(tmp_path) -> None:
    lacking = make_environment(tmp_path / "lacking", linked=True)
    paths = [str(Path(acker.__file__).resolve().parents[1]), str(ROOT)]
    code = SHIPPED.format(paths=paths, server=CLUSTER)
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
