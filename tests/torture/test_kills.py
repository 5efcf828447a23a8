"""A streaming acker under kill -9, and a table of a micro-batch that in the end did not count."""

import numpy as np
import pytest
from pyspark.errors import StreamingQueryException

from acker import Outcome
from acker._engine.completions import Completions
from acker._engine.schemas import COMPLETION_DTYPES
from acker.spark import batch_report, completions, for_each_completion
from acker.spark.session_checks import PROVIDER, PROVIDER_CONF
from acker.spark.streams.table_cache import folder_of_executor
from tests.torture.kills import (
    CLUSTER,
    LOCAL,
    Kill,
    KillsError,
    Plan,
    Survived,
    Victim,
    __main__,
    plan_of,
    run,
    survive,
)
from tests.torture.kills.driver import SCHEMA, write
from tests.torture.kills.plan import SHARDS, is_lost, write_files
from tests.torture.kills.points import DRIVER_POINTS, READ, WORKER_POINTS

# For slow machines: on an idle one of two cores each test takes less than a minute.
SECONDS_MAX = 1500
pytestmark = [pytest.mark.spark, pytest.mark.timeout(SECONDS_MAX + 60)]

WORKER, EXECUTOR, DRIVER = Victim


# ---- kills ----------------------------------------------------------------------------------------------------------


@pytest.mark.minutes(3)
@pytest.mark.slow
def test_completions_are_those_of_an_undisturbed_run(tmp_path):
    plan = plan_of(3, [WORKER, EXECUTOR], master=CLUSTER)
    survived = survive(plan, tmp_path / "run", deadline_s=SECONDS_MAX)
    assert sorted(kill.partition(" ")[0] for kill in survived.kills) == ["executor", "worker"]
    assert survived.batches == plan.files
    assert survived.outcomes["ACKED"] > 1000 and survived.outcomes["FAILED"] > 0
    assert survived.outcomes["TIMED_OUT"] == 0


@pytest.mark.minutes(4)
@pytest.mark.slow
def test_each_tree_ends_once_where_some_expire(tmp_path):
    plan = plan_of(5, [WORKER, DRIVER], master=LOCAL, timeout_s=4)
    survived = survive(plan, tmp_path / "run", deadline_s=SECONDS_MAX)
    assert sorted(kill.partition(" ")[0] for kill in survived.kills) == ["driver", "worker"]
    assert survived.drivers >= 2
    assert survived.outcomes["ACKED"] > 0 and survived.outcomes["TIMED_OUT"] > 0


@pytest.mark.minutes(4)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "points"),
    [
        pytest.param(WORKER, WORKER_POINTS, id="worker"),
        # Each of the two points that are left out comes just before one of these, with no more in the store.
        pytest.param(DRIVER, WORKER_POINTS[1:4:2], id="driver, to the chunk"),
        pytest.param(DRIVER, (*WORKER_POINTS[4:], *DRIVER_POINTS), id="driver, from the head on"),
    ],
)
def test_a_kill_at_each_point_between_the_state_and_the_commit_changes_nothing(tmp_path, victim, points):
    # In the third micro-batch, or in one behind that which is run again; points of shards come once for each of them.
    number = dict.fromkeys((READ, *DRIVER_POINTS), 3)
    kills = tuple(Kill(victim, number.get(point, SHARDS + 2), point=point) for point in points)
    survived = survive(Plan(7, LOCAL, None, kills, 3 * len(kills)), tmp_path / "run", deadline_s=SECONDS_MAX)
    assert [kill.partition(", ")[2] for kill in survived.kills] == list(points)
    assert survived.outcomes["ACKED"] > 1000 and survived.outcomes["TIMED_OUT"] == 0


# ---- stale tables ---------------------------------------------------------------------------------------------------


@pytest.fixture
def rocks(spark):
    before = spark.conf.get(PROVIDER_CONF)
    spark.conf.set(PROVIDER_CONF, PROVIDER)
    yield spark
    spark.conf.set(PROVIDER_CONF, before)


def tables_left(spark, query):
    """Return the shards of which a query has left tables, each with the token of who may take it."""

    def notes(_):
        return [(path.name, path.read_text().split()[0]) for path in folder_of_executor().glob(f"{query}-*")]

    return set(spark.sparkContext.parallelize([0], 1).flatMap(notes).collect())


@pytest.mark.slow
def test_a_table_of_a_batch_that_is_run_again_is_not_taken(rocks, tmp_path):
    """The sink fails after the state was committed: the same workers get the version of the state before."""
    fails_at = 2
    plan = plan_of(1, [], master=LOCAL, files=4)
    expected = write_files(plan, tmp_path / "messages")
    kept = tmp_path / "completions"
    kept.mkdir()
    failures = ["the disk is full"]

    def keep(done, batch_id):
        write(done, kept, batch_id)
        if batch_id == fails_at and failures:
            raise OSError(failures.pop())

    def start():
        messages = rocks.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "messages"))
        writer = completions(messages, shards=SHARDS, timeout="1 day").writeStream
        writer = writer.foreachBatch(for_each_completion(keep, empty=True)).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    with pytest.raises(StreamingQueryException, match="the disk is full"):
        query.awaitTermination()
    before = [batch_report(progress) for progress in query.recentProgress]
    assert [(report.batch_id, report.cached) for report in before] == [(0, 0), (1, SHARDS)]
    stale = tables_left(rocks, query.id)
    assert len(stale) == SHARDS
    again = start()
    again.awaitTermination()
    assert again.id == query.id and again.runId != query.runId
    after = [batch_report(progress) for progress in again.recentProgress]
    tables = [(report.batch_id, report.cached, report.rebuilt) for report in after]
    assert tables[:2] == [(fails_at, 0, SHARDS), (fails_at + 1, SHARDS, 0)]
    assert len(tables_left(rocks, query.id)) == SHARDS and not tables_left(rocks, query.id) & stale
    tries = run.tries_of(kept)
    assert len(tries[fails_at]) == 2
    assert run.faults_of(plan, expected, run.once(tries, plan.seed)) == []


# ---- what runs are, and what would be noticed ------------------------------------------------------------------------


def test_a_plan_is_that_of_its_seed():
    plans = [__main__.run_of(seed) for seed in range(40)]
    assert plans == [__main__.run_of(seed) for seed in range(40)]
    assert {plan.master for plan in plans} == {LOCAL, CLUSTER} and len({plan.timeout_s for plan in plans}) == 2
    kills = [kill for plan in plans for kill in plan.kills]
    assert {kill.victim for kill in kills} == set(Victim) and {kill.late_s > 0 for kill in kills} == {False, True}
    assert all(kill.late_s == 0 for kill in kills if kill.victim is WORKER)
    # A local Spark has its executor in the driver's JVM.
    assert all(kill.victim is not EXECUTOR for plan in plans if plan.master == LOCAL for kill in plan.kills)


def change(done, **columns):
    return Completions(**{name: columns.get(name, getattr(done, name)) for name in COMPLETION_DTYPES})


def take(done, rows):
    return change(done, **{name: getattr(done, name)[rows] for name in COMPLETION_DTYPES})


def test_what_is_wrong_would_be_noticed_where_nothing_expires(tmp_path):
    plan = plan_of(1, [], master=LOCAL)
    expected = write_files(plan, tmp_path / "messages")
    done = expected.undisturbed
    assert run.faults_of(plan, expected, done) == []
    every = np.arange(len(done))
    for wrong, words in (
        (take(done, every[1:]), "1 trees did not end as undisturbed"),
        (take(done, np.append(every, 0)), "1 trees ended more than once"),
        (change(done, message_id=done.message_id + 1), f"{len(done)} trees ended that nobody began, or with another"),
        (change(done, root_id=np.where(every == 0, 1, done.root_id)), "1 trees ended that nobody began"),
        (change(done, outcome=np.where(every == 0, 2, done.outcome).astype(np.int8)), "1 should not have"),
    ):
        assert words in "; ".join(run.faults_of(plan, expected, wrong))


def test_what_is_wrong_would_be_noticed_where_some_expire(tmp_path):
    plan = plan_of(1, [], master=LOCAL, timeout_s=4)
    expected = write_files(plan, tmp_path / "messages")
    acked = expected.undisturbed
    late = sorted(expected.tracked.keys() - set(acked.root_id.tolist()))
    message_id, task_id = zip(*(expected.tracked[root] for root in late), strict=True)
    columns = (late, message_id, task_id, [Outcome.TIMED_OUT] * len(late), [5000] * len(late))
    lost = Completions(**dict(zip(COMPLETION_DTYPES, map(np.array, columns), strict=True)))
    done = Completions.concat([acked, lost])
    assert run.faults_of(plan, expected, done) == []
    every = np.arange(len(done))
    is_acked = done.outcome == Outcome.ACKED
    for wrong, words in (
        (take(done, every[1:]), f"1 of {len(expected.tracked)} trees never ended"),
        (take(done, np.append(every, 0)), "1 trees ended more than once"),
        (change(done, outcome=np.where(is_lost(done.root_id), 0, done.outcome)), "trees of which nothing was heard"),
        (change(done, outcome=np.where(is_acked, 1, done.outcome)), "trees neither ended as undisturbed nor timed"),
        (change(done, outcome=np.full(len(done), 2)), "so the run shows nothing"),
    ):
        assert words in "; ".join(run.faults_of(plan, expected, wrong))


def test_a_micro_batch_that_brings_something_else_when_run_again_is_noticed(tmp_path):
    done = write_files(plan_of(1, [], master=LOCAL), tmp_path / "messages").undisturbed
    backwards = take(done, np.arange(len(done))[::-1])
    assert len(run.once({0: [done, backwards]}, 1)) == len(done)
    older = change(done, elapsed_ms=done.elapsed_ms + 1)
    with pytest.raises(KillsError, match="seed 7: micro-batch 0 brought something else when it was run again"):
        run.once({0: [done, older]}, 7)
    with pytest.raises(KillsError, match="not those between"):
        run.once({0: [done], 2: [done]}, 7)


def test_the_program_counts_kills_and_names_the_seed(monkeypatch, capsys):
    def survives(plan, folder, **options):
        return Survived([f"{kill.victim}" for kill in plan.kills], 2, 0, plan.files, 1, 4, 4, {"ACKED": 10})

    monkeypatch.setattr(__main__, "survive", survives)
    assert __main__.main(["--kills", "6"]) == 0
    told = capsys.readouterr().out
    assert "local-cluster" in told and "trees expire after 4 s" in told
    assert told.endswith("2 runs, 10 kills, 4 drivers, 0 failures, 20 ACKED\n")

    def breaks(plan, folder, **options):
        raise KillsError(f"seed {plan.seed}: 3 trees ended more than once")

    monkeypatch.setattr(__main__, "survive", breaks)
    assert __main__.main(["--seed", "9"]) == 1
    assert "again: python -m tests.torture.kills --seed 9" in capsys.readouterr().out
    assert __main__.main(["--kills", "0"]) == 1, "a soak that killed nobody has shown nothing"
