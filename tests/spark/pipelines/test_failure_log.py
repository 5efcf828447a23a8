"""Rows that fail are heard of without asking: in the logs of worker and driver, or as an error."""

import logging
import pickle
import subprocess
import sys
import warnings

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException

from acker.errors import StrictError
from acker.spark import completions_of
from acker.spark.pipelines.failure_log import FailedRows, _FailedRowsParam, _LoggedFailedRowsParam
from acker.spark.pipelines.stages import Stage
from acker.spark.pipelines.tracked import spout
from acker.spark.pipelines.transforms import BoltTransform, SpoutTransform

# The workers cannot import the tests; functions of this module travel as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = pa.schema({"word": pa.string()})
NUMBERS, OTHERS = (pa.record_batch({"number": pa.array(range(first, first + 6))}) for first in (0, 6))


def fail(row):
    if row.number % 2:
        raise ValueError(f"odd: {row.number}")
    return ["x"]


def fail_all(row):
    raise KeyError(row.number)


def stage(function, *, strict=False, shards=2):
    transforms = (
        SpoutTransform("numbers", 1, "number", None, 0, 0),
        BoltTransform("halve", 1, function, "row", SCHEMA, True, strict),
    )
    return Stage(transforms, SCHEMA, shards, 0, False)


def test_the_worker_logs_the_first_row_of_a_task_that_fails(caplog):
    told = []
    list(stage(fail).run(iter([NUMBERS, OTHERS]), told.append))
    assert [record.getMessage() for record in caplog.records] == [
        "halve: a row failed with ValueError: odd: 1; further ones of this task are not logged"
    ]
    assert told == [{"halve": (6, "ValueError: odd: 1")}]
    caplog.clear()
    list(stage(lambda _: ["x"]).run(iter([NUMBERS]), told.append))
    assert not caplog.records and len(told) == 1


def test_a_strict_bolt_raises_what_its_first_row_raised():
    with pytest.raises(StrictError, match=r"halve: 3 of 6 rows failed, row 1 with ValueError: odd: 1; strict="):
        list(stage(fail, strict=True).run(iter([NUMBERS])))


class Timers:
    """Timers that a test runs."""

    def __init__(self):
        self.secs, self._call = [], None

    def start(self, secs, call):
        assert self._call is None, "the timer before has to be cancelled"
        self.secs.append(secs)
        self._call = call
        return self

    def cancel(self):
        self._call = None

    def run(self):
        call, self._call = self._call, None
        call()


def test_the_last_line_has_the_whole_number(caplog):
    timers = Timers()
    log = _LoggedFailedRowsParam(timers.start)
    value = log.zero({})
    for rows in (13, 636, 604):
        value = log.addInPlace(value, {"split": FailedRows(rows, "ValueError: a")})
    timers.run()
    log.addInPlace(value, {"split": FailedRows(1, "b")})
    timers.run()
    assert [int(record.getMessage().split()[1]) for record in caplog.records] == [13, 649, 1253, 1254]
    assert timers.secs == [0.5, 0.5, 0.5, 1.0]


def test_the_whole_number_is_logged_at_the_end_of_the_program():
    program = (
        "import logging; logging.basicConfig(format='%(message)s')\n"
        "from acker.spark.pipelines.failure_log import FailedRows, _LoggedFailedRowsParam\n"
        "log = _LoggedFailedRowsParam()\n"
        "value = log.addInPlace(log.addInPlace({}, {'split': FailedRows(1, 'a')}), {'split': FailedRows(2, 'b')})\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert [line.split()[:2] for line in ended.stderr.splitlines()] == [["split:", "1"], ["split:", "3"]]


def test_the_driver_logs_the_first_row_and_each_tenfold(caplog):
    log = _LoggedFailedRowsParam(Timers().start)
    value = log.zero({})
    for _ in range(100):
        value = log.addInPlace(value, {"split": FailedRows(1, "ValueError: a"), "count": FailedRows(3, "b")})
    assert value == {"split": (100, "ValueError: a"), "count": (300, "b")}
    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(" failed")[0] for text in texts if text.startswith("split")] == [
        f"split: {rows}" for rows in ("1 row", "10 rows", "100 rows")
    ]
    assert [text.split()[1] for text in texts if text.startswith("count")] == ["3", "30", "300"]
    assert texts[0] == "split: 1 row failed so far, one of them with ValueError: a; failures() has all of them"
    # Two actions on a pipeline that is not persisted compute each row twice.
    assert texts[1].startswith("count: 3 rows failed so far, each counted as often as it ran, one of them with b;")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_in_a_worker_nothing_is_told_twice(caplog):
    merge = pickle.loads(pickle.dumps(_LoggedFailedRowsParam()))
    assert type(merge) is _FailedRowsParam
    merge.addInPlace({}, {"split": FailedRows(1, "a")})
    assert not caplog.records


@pytest.fixture
def pipeline(spark):
    frame = spark.range(40).withColumnRenamed("id", "number").repartition(4)
    return spout(frame, message_id="number", component="numbers", run_seed=1, shards=2)


@pytest.mark.spark
def test_when_every_row_fails_the_driver_hears_of_it(pipeline, caplog):
    done = pipeline.bolt(fail_all, schema="word string", component="halve", sink=True)
    assert done.data().collect() == []
    texts = [record.getMessage() for record in caplog.records if record.name == "acker.spark"]
    assert texts and all(text.startswith("halve: ") and "KeyError" in text for text in texts)
    counts = [int(text.split()[1]) for text in texts]
    assert 1 <= counts[0] <= 40


@pytest.mark.spark
@pytest.mark.parametrize("where", [pytest.param("spout", marks=pytest.mark.slow), "bolt"])
def test_strict_ends_the_job_with_the_component_and_the_text(pipeline, where):
    if where == "spout":
        pipeline = spout(pipeline.plan.frame, message_id="number", component="numbers", strict=True)
    options = {"strict": True} if where == "bolt" else {}
    done = pipeline.bolt(fail, schema="word string", component="halve", sink=True, **options)
    with pytest.raises(PythonException, match=r"halve: \d+ of \d+ rows failed, row \d+ with ValueError: odd: \d+"):
        done.data().collect()
    loose = pipeline.bolt(fail, schema="word string", component="halve", sink=True, strict=False)
    assert loose.data().count() == 20


@pytest.mark.spark
def test_a_pipeline_whose_end_nobody_reads_warns(pipeline):
    open_end = pipeline.bolt(fail, schema="number long", component="halve")
    sink = open_end.bolt(fail, schema="word string", component="count", sink=True)
    for end, names in (
        (pipeline, "'numbers'"),
        (open_end, "'halve'"),
        (open_end.select("number").grouped("number"), "'halve'"),
        (open_end.branches(2)[1], "'branches'"),
    ):
        with pytest.warns(
            UserWarning, match=f"no bolt reads what {names} emits, so the trees of those rows .* sink=True"
        ) as warned:
            end.completions()
        assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sink.completions()
    one, other = pipeline.branches(2)
    ended = [
        part.bolt(fail, schema="word string", component=name, sink=name == "a")
        for part, name in ((one, "a"), (other, "b"))
    ]
    with pytest.warns(UserWarning, match="no bolt reads what 'b' emits") as warned:
        completions_of(*ended)
    assert warned[0].filename == __file__
