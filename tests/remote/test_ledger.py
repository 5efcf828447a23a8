"""The ledger: never early, whatever is repeated, reordered, lost or forged; stuck only if something was lost."""

import itertools

import pytest

from acker.remote.ledger import Ledger, _Execution
from acker.remote.wire import Report, ReportKind
from tests.marks import slow_after
from tests.torture import remote_trees
from tests.torture.remote_trees import FAILING, LOSSY, ROUGH, USUAL, run

OK, FAIL = ReportKind.OK, ReportKind.FAIL


class Jobs:
    """A ledger with one job of the owner, and shorthand for reports."""

    def __init__(self, jobs_max=1000):
        self.ledger = Ledger(jobs_max)
        self.owner = self.ledger.maker
        assert self.ledger.make("root", 0.0) == 0

    def report(self, maker, place, execution, jobs=0, kind=OK, reason="", names=()):
        self.ledger.take(Report(1, maker, place, execution, jobs, kind, reason, names), 5.0)
        return self.ledger.open


@pytest.fixture
def jobs():
    return Jobs()


# ---- the histories in which ids that come out the same again ack too early ----


def test_a_job_that_runs_again_and_sends_other_jobs_is_not_done_before_them(jobs):
    # Execution 1 sends a lamp and is killed. Execution 2 sends a rug and a lamp, and reports. The lamps end, both.
    assert jobs.report(jobs.owner, 0, execution=2, jobs=2) == 2
    jobs.report(1, 0, execution=10)  # the lamp of execution 1
    assert jobs.report(2, 1, execution=11) == 1  # the lamp of execution 2
    assert [str(job) for job in jobs.ledger.missing(45.0)] == ["job 0 of root, made by root, 40.0 s ago"]
    assert jobs.report(2, 0, execution=12) == 0


@pytest.mark.parametrize("order", list(itertools.permutations([(1, 1), (2, 1), (3, 0)])))
def test_a_job_that_reports_three_times_awaits_what_its_first_report_made(order):
    jobs = Jobs()
    for execution, made in order:
        jobs.report(jobs.owner, 0, execution, made)
    first, made = order[0]
    assert jobs.ledger.open == made
    assert jobs.ledger.duplicates == 2
    if made:
        assert jobs.report(first, 0, execution=9) == 0


def test_a_child_whose_second_run_made_nothing_does_not_hide_what_its_first_made(jobs):
    jobs.report(jobs.owner, 0, execution=1, jobs=1)
    jobs.report(1, 0, execution=2, jobs=1)
    assert jobs.report(1, 0, execution=3, jobs=0) == 1
    assert jobs.report(2, 0, execution=4) == 0


# ---- disorder, repeats and forgeries ----


def test_reports_in_any_order_and_doubled_end_at_the_last_one():
    names = [(None, 0, 1, 2), (1, 0, 2, 1), (1, 1, 3, 0), (2, 0, 4, 0)]
    for order in itertools.permutations(range(4)):
        jobs = Jobs()
        for place in order:
            assert jobs.ledger.open > 0
            maker, job, execution, made = names[place]
            for _ in range(2):
                jobs.report(maker or jobs.owner, job, execution, made)
        assert jobs.ledger.open == 0 and jobs.ledger.failure is None


def test_a_failure_counts_if_its_job_does(jobs):
    jobs.report(7, 0, execution=8, kind=FAIL, reason="of an execution that lost")
    assert jobs.report(jobs.owner, 0, execution=1, jobs=1) == 1 and jobs.ledger.failure is None
    jobs.report(1, 0, execution=2)
    jobs.report(1, 0, execution=3, kind=FAIL, reason="again, and it is done")
    assert jobs.ledger.open == 0 and jobs.ledger.failure is None


def test_an_early_failure_counts_when_its_maker_has_reported(jobs):
    jobs.report(1, 0, execution=2, kind=FAIL, reason="pack: no lamp")
    assert jobs.ledger.failure is None
    jobs.report(jobs.owner, 0, execution=1, jobs=1)
    assert jobs.ledger.failure == "pack: no lamp"
    jobs.report(1, 0, execution=3)
    assert jobs.ledger.failure == "pack: no lamp"


def test_a_failure_without_a_reason_names_the_job(jobs):
    jobs.report(jobs.owner, 0, execution=1, jobs=1, names=("pack",))
    jobs.report(1, 0, execution=2, kind=FAIL)
    assert jobs.ledger.failure == "pack failed, without a reason"


def test_forged_reports_end_nothing_that_is_not_theirs(jobs):
    jobs.report(jobs.owner, 0, execution=1, jobs=2)
    jobs.report(1, 2, execution=5)  # a job that the execution has not made
    jobs.report(jobs.owner, 1, execution=5)
    jobs.report(1, 0, execution=1)  # the execution of another job
    assert jobs.ledger.open == 2 and jobs.ledger.strangers == 3


@pytest.mark.parametrize("made", [1000, 2**32 - 1])
def test_more_jobs_than_jobs_max_fail_the_tree_and_take_no_memory(jobs, made):
    jobs.report(jobs.owner, 0, execution=1, jobs=made)
    assert "more than 1,000 jobs derive from it" in jobs.ledger.failure


def test_reports_that_nobody_announced_are_bounded(jobs):
    for number in range(1000):
        jobs.report(77, number, execution=2000 + number)
    assert "and 1,000 reports of unknown origin" in jobs.ledger.failure


def test_the_jobs_of_the_owner_are_bounded(jobs):
    for _ in range(1000):
        jobs.ledger.make("", 0.0)
    assert "more than 1,000 jobs" in jobs.ledger.failure


def test_open_jobs_have_names_and_makers(jobs):
    jobs.ledger.make("bill", 2.0)
    jobs.report(jobs.owner, 0, execution=1, jobs=3, names=("pack", "", "post"))
    jobs.report(1, 0, execution=2)
    assert [str(job) for job in jobs.ledger.missing(10.0)] == [
        "bill, 8.0 s ago",
        "job 1 of root, made by root, 5.0 s ago",
        "post, made by root, 5.0 s ago",
    ]


# ---- the simulation ----


@pytest.mark.parametrize("count", slow_after(1, [300, 1200]))
def test_no_simulated_tree_is_acked_early_and_none_is_stuck(count):
    assert run(count, seed=1) == {"acked": count}
    assert run(300, seed=2, rates=ROUGH) == {"acked": 300}


def test_simulated_trees_that_lose_reports_or_jobs_are_stuck_and_never_early():
    outcomes = run(300, seed=3, rates=LOSSY)
    assert outcomes["stuck"] > 50 and outcomes["acked"] > 50


def test_simulated_trees_whose_jobs_fail_are_failed():
    outcomes = run(200, seed=4, rates=FAILING)
    assert outcomes["failed"] > 20 and outcomes["acked"] > 20


def test_the_simulation_notices_executions_that_share_a_number(monkeypatch):
    """With names that come out the same for each execution, as in a xor of ids by place, it finds an early ack."""

    class SameNames(remote_trees.Job):
        def __init__(self, token, replies, name=""):
            super().__init__(token, replies, name)
            self._execution = hash((token.maker, token.place)) & 2**64 - 1

    monkeypatch.setattr(remote_trees, "Job", SameNames)
    with pytest.raises(AssertionError, match="acked early"):
        run(1200, seed=1, rates=USUAL)


def test_what_is_missing_is_found_beside_many_jobs_that_are_done():
    """One search of bits, and not a look at each job."""
    ledger = Ledger()
    ledger.make("split", 0.0)
    ledger.take(Report(0, ledger.maker, 0, 7, 1_000_003, ReportKind.OK), 0.0)
    split = ledger._executions[7]
    split.done[:] = b"\xff" * len(split.done)
    for place in (17, 1_000_002):
        split.done[place >> 3] &= ~(1 << (place & 7))
    looks = []
    is_done = _Execution.is_done
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Execution, "is_done", lambda each, place: looks.append(place) or is_done(each, place))
        assert [each.name for each in ledger.missing(0.0)] == ["job 17 of split", "job 1000002 of split"]
    assert len(looks) < 32
