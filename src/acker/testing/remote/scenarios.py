"""The scenarios of the kit: what people see of a tree whose jobs run in other processes, whatever happens to them."""

from __future__ import annotations

import functools
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from acker.connectors.consumer import Consumer
from acker.connectors.handles import Message
from acker.errors import JobsError
from acker.remote import JobTree, tree
from acker.testing.connectors.broker import MemoryBroker
from acker.testing.connectors.harness import NotApplicable
from acker.testing.connectors.publisher import MemoryPublisher
from acker.testing.connectors.source import MemorySource
from acker.testing.remote.harness import QueueHarness
from acker.testing.remote.plans import JobNotes, JobPlan

# Named after the promise that it tests. It raises AssertionError if the integration breaks the promise, and
# NotApplicable if the queue or its harness lacks something that the scenario needs.
Scenario: TypeAlias = Callable[[QueueHarness], None]

_SHORT_SECS: Final = 0.2


class _ScenarioRun:
    """The notes of one scenario, and the trees that it begins."""

    def __init__(self, harness: QueueHarness) -> None:
        self.harness = harness
        self.folder = tempfile.mkdtemp(dir=harness.folder)
        self.notes = JobNotes(self.folder)

    def plan(self, name: str = "job", sends: Sequence[JobPlan] = (), **fields: Any) -> JobPlan:
        return JobPlan(self.folder, name, sends, **fields)

    def begin(self, plan: JobPlan, send: Callable[..., None] | None = None, *options: Any) -> JobTree:
        with tree(self.harness.replies) as jobs:
            (send or self.harness.send)(plan.text, *options)
        return jobs

    def finish(self, plan: JobPlan, send: Callable[..., None] | None = None, *options: Any) -> Counter[str]:
        """Run a job as a tree; return what is done at its end."""
        jobs = self.begin(plan, send, *options)
        self.wait(jobs)
        return self.notes.done

    def wait(self, jobs: JobTree) -> None:
        try:
            jobs.wait(self.harness.patience_secs)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.harness.log}") from error

    def failure(self, plan: JobPlan, send: Callable[..., None] | None = None, *options: Any) -> str:
        """Run a job whose tree has to fail at once; return the reason."""
        jobs = self.begin(plan, send, *options)
        try:
            self.wait(jobs)
        except JobsError as error:
            return str(error)
        raise AssertionError(f"the tree did not fail: {dict(self.notes.done)}\n{self.harness.log}")

    def has(self, kind: str, name: str) -> bool:
        return name in self.notes.counted(kind)

    def until(self, kind: str, name: str) -> None:
        self.harness.wait_until(lambda: self.has(kind, name))


def _scenario(work: Callable[[_ScenarioRun], None]) -> Scenario:
    """Return a scenario that begins with notes of its own, and leaves no job that waits."""

    @functools.wraps(work)
    def scenario(harness: QueueHarness) -> None:
        run = _ScenarioRun(harness)
        try:
            work(run)
        finally:
            run.notes.open_all()

    return scenario


@_scenario
def a_tree_ends_with_its_last_grandchild(run: _ScenarioRun) -> None:
    """Jobs that jobs send are awaited, at any depth and in any number."""
    posts = [[run.plan(f"post {pack} {number}") for number in range(3)] for pack in range(3)]
    packs = [run.plan(f"pack {number}", posts[number]) for number in range(3)]
    everything = ["split", *(each.name for each in packs), *(each.name for group in posts for each in group)]
    assert run.finish(run.plan("split", packs)) == Counter(everything)


@_scenario
def a_tree_is_open_while_a_grandchild_runs(run: _ScenarioRun) -> None:
    """And names the job that it waits for, and the one that made it."""
    grandchild = run.plan("grandchild", waits=True)
    jobs = run.begin(run.plan("job", [run.plan("child", [grandchild])]))
    run.until("begun", "grandchild")
    run.harness.wait_until(lambda: [job for job in jobs.missing() if job.made_by])
    (missing,) = jobs.missing()
    assert missing.name and missing.made_by
    assert jobs.alive
    run.notes.open("grandchild")
    run.wait(jobs)
    assert run.notes.done == Counter(["grandchild", "child", "job"])


@_scenario
def a_message_is_acked_after_its_last_job(run: _ScenarioRun) -> None:
    """Its last step runs when all jobs are done, and before the ack."""
    broker, seen = MemoryBroker(), []
    broker.publish([b"order"])

    def handle(message: Message[bytes]) -> None:
        run.harness.send(run.plan("job", [run.plan("child", [run.plan("grandchild")])]).text)
        message.on_done(lambda: seen.append((run.notes.done, [*broker.acked])))

    Consumer(MemorySource(broker), replies=run.harness.replies).run(handle, threads=1, until="empty")
    assert broker.acked == [b"order"]
    assert seen == [(Counter(["job", "child", "grandchild"]), [])]


@_scenario
def a_message_whose_job_fails_is_tried_again_and_then_a_dead_letter(run: _ScenarioRun) -> None:
    """With the error of the job as the reason."""
    broker, letters = MemoryBroker(), MemoryPublisher()
    broker.publish([b"order"])
    consumer = Consumer(
        MemorySource(broker), replies=run.harness.replies, attempts_max=2, backoff_secs=0.01, dead_letters=letters
    )
    consumer.run(lambda message: run.harness.send(run.plan(ends="raises").text), threads=1, until="empty")
    assert run.notes.counted("begun")["job"] == 2
    (letter,) = letters.published
    assert "ValueError: no lamp" in str(letter.headers)


@_scenario
def a_job_that_is_delivered_twice_counts_once(run: _ScenarioRun) -> None:
    """Whatever the second execution sends."""
    plan = run.plan("job", [run.plan("child of run {run}")])
    with tree(run.harness.replies) as jobs:
        token = jobs.token("job")
    for _ in range(2):
        run.harness.send_with_token(plan.text, token)
    run.wait(jobs)
    done = run.notes.done
    assert done["job"] and (done["child of run 1"] or done["child of run 2"])
    run.harness.wait_until(lambda: run.notes.done.total() == 4)


@_scenario
def a_job_for_later_is_awaited(run: _ScenarioRun) -> None:
    """Until it has run."""
    assert run.finish(run.plan(), run.harness.send_later, 0.5) == Counter(["job"])


@_scenario
def a_detached_job_is_not_awaited(run: _ScenarioRun) -> None:
    """Nor does its failure fail the tree."""
    run.finish(run.plan("job", [run.plan("child", waits=True)], sends_in="detached"))
    assert not run.has("done", "child")
    run.notes.open("child")
    run.until("done", "child")


@_scenario
def a_retry_is_awaited_and_so_is_what_the_runs_before_it_sent(run: _ScenarioRun) -> None:
    """A run that asks for a retry has an end like any other."""
    plan = run.plan("job", [run.plan("child of run {run}")], ends="raises", fails=2)
    done = run.finish(plan, run.harness.send_with_retries, 2)
    assert done == Counter(["job", *(f"child of run {number}" for number in (1, 2, 3))])


@_scenario
def a_job_that_uses_up_its_retries_fails_the_tree(run: _ScenarioRun) -> None:
    """With the error of the last run."""
    assert "ValueError: no lamp" in run.failure(run.plan(ends="raises"), run.harness.send_with_retries, 1)
    assert run.notes.counted("begun")["job"] == 2


@_scenario
def a_job_that_raises_fails_the_tree(run: _ScenarioRun) -> None:
    """At once, with its error; also if a job made it."""
    assert "ValueError: no lamp" in run.failure(run.plan("job", [run.plan("child", ends="raises")]))


@_scenario
def a_job_that_fails_its_part_itself_fails_the_tree(run: _ScenarioRun) -> None:
    """With its reason; and for the queue it is a job like any other, so the worker logs no error of acker."""
    assert "no lamp" in run.failure(run.plan(ends="fails its part"))
    run.until("done", "job")
    assert run.finish(run.plan("next"))["next"] == 1
    assert "TupleStateError" not in run.harness.log, run.harness.log


@_scenario
def a_job_that_fails_its_part_itself_and_raises_is_run_again(run: _ScenarioRun) -> None:
    """As the queue does with any job that raises, though the tree has failed."""
    plan = run.plan(ends="fails its part and raises", fails=1)
    assert "no lamp" in run.failure(plan, run.harness.send_with_retries, 1)
    run.until("done", "job")
    assert run.notes.counted("begun")["job"] == 2


@_scenario
def a_job_that_is_too_old_fails_the_tree(run: _ScenarioRun) -> None:
    """It never ran."""
    assert run.failure(run.plan(), run.harness.send_expired)
    assert not run.has("begun", "job")


@_scenario
def a_job_that_is_revoked_fails_the_tree(run: _ScenarioRun) -> None:
    """It never ran."""
    assert run.failure(run.plan(), run.harness.send_revoked)
    assert not run.has("begun", "job")


@_scenario
def a_job_that_no_worker_knows_fails_the_tree(run: _ScenarioRun) -> None:
    """At once."""
    assert run.failure(run.plan(), run.harness.send_unknown)


@_scenario
def a_job_that_runs_into_its_time_limit_fails_the_tree(run: _ScenarioRun) -> None:
    """At once."""
    assert "Time" in run.failure(run.plan(ends="hangs"), run.harness.send_with_time_limit, 1.0)


def _ends_as(run: _ScenarioRun, how: str | None, plan: JobPlan) -> None:
    if how is None:
        raise NotApplicable("its harness says that neither happens")
    if how == "repeats":
        assert run.finish(plan)["job"] == 1
        assert run.has("done", "child of run 2")
    else:
        assert run.failure(plan)


@_scenario
def a_job_that_exits_runs_again_or_fails_the_tree(run: _ScenarioRun) -> None:
    """As the queue does; the tree knows, and no timeout is needed."""
    plan = run.plan("job", [run.plan("child of run {run}")], ends="exits", fails=1)
    _ends_as(run, run.harness.after_exit, plan)


@_scenario
def a_job_whose_process_is_killed_runs_again_or_fails_the_tree(run: _ScenarioRun) -> None:
    """As the queue does; the tree knows, and no timeout is needed."""
    plan = run.plan("job", [run.plan("child of run {run}")], ends="is killed", fails=1)
    _ends_as(run, run.harness.after_process_kill, plan)


@_scenario
def a_job_whose_worker_is_killed_runs_again_or_fails_the_tree(run: _ScenarioRun) -> None:
    """When another worker runs."""
    if run.harness.after_worker_kill is None:
        raise NotApplicable("its harness says that neither happens")
    jobs = run.begin(run.plan("job", [run.plan("child of run {run}")], waits=True))
    run.until("begun", "job")
    run.harness.kill_worker()
    try:
        assert jobs.alive
        run.notes.open("job")
    finally:
        run.harness.start_worker()
    if run.harness.after_worker_kill == "repeats":
        run.wait(jobs)
        assert run.has("done", "job") and run.has("done", "child of run 2")
    else:
        try:
            run.wait(jobs)
        except JobsError:
            return
        raise AssertionError("the tree did not fail")


@_scenario
def a_job_that_the_queue_has_lost_is_named(run: _ScenarioRun) -> None:
    """By whoever waits for longer than he wants to."""
    jobs = run.begin(run.plan(), run.harness.send_lost)
    try:
        jobs.wait(_SHORT_SECS)
    except TimeoutError as error:
        (job,) = jobs.missing()
        assert job.name and job.name in str(error)
    else:
        raise AssertionError("the tree has ended without its job")
    finally:
        jobs.close()


@_scenario
def a_report_waits_until_the_server_of_the_replies_answers(run: _ScenarioRun) -> None:
    """No report is lost, and no job runs twice for that."""
    jobs = run.begin(run.plan(waits=True))
    run.until("begun", "job")
    with run.harness.replies_away():
        run.notes.open("job")
        run.until("done", "job")
        assert jobs.alive
    run.wait(jobs)


@_scenario
def a_server_that_forgets_the_replies_fails_the_tree(run: _ScenarioRun) -> None:
    """At once, and the next tree has a new address."""
    jobs = run.begin(run.plan(waits=True))
    run.until("begun", "job")
    run.harness.forget_replies()
    try:
        run.wait(jobs)
    except JobsError as error:
        assert "gone" in str(error)
    else:
        raise AssertionError("the tree did not fail")
    run.notes.open("job")
    assert run.finish(run.plan("next"))["next"] == 1


@_scenario
def a_job_of_an_owner_that_is_gone_is_skipped_where_this_is_wanted(run: _ScenarioRun) -> None:
    """Whoever took over has begun it anew."""
    if not run.harness.skips:
        raise NotApplicable("its harness has no way to say so")
    run.harness.kill_worker()
    jobs = run.begin(run.plan("job"))
    run.harness.forget_replies()
    run.harness.wait_until(lambda: not jobs.alive)
    run.harness.start_worker(**run.harness.skips)
    assert run.finish(run.plan("next"))["next"] == 1
    run.harness.wait_until(lambda: "is skipped" in run.harness.log)
    assert not run.has("begun", "job")
    run.harness.kill_worker()
    run.harness.start_worker()


@_scenario
def a_report_to_a_tree_that_is_over_is_late(run: _ScenarioRun) -> None:
    """It is counted, and the job is done all the same."""
    late = run.harness.replies.counts.late
    jobs = run.begin(run.plan(waits=True))
    run.until("begun", "job")
    jobs.close()
    run.notes.open("job")
    run.until("done", "job")
    run.harness.wait_until(lambda: run.harness.replies.counts.late > late)


@_scenario
def a_job_with_a_broken_token_runs(run: _ScenarioRun) -> None:
    """Nobody waits for it nor for what it sends, and the worker logs an error."""
    run.harness.send_with_token(run.plan("job", [run.plan("child")]).text, "a1.nonsense")
    run.until("done", "child")
    run.harness.wait_until(lambda: "this is no token" in run.harness.log)  # lines may come through a pipe


@_scenario
def a_send_that_raises_fails_the_tree(run: _ScenarioRun) -> None:
    """Also if the job goes on: nobody can know whether the queue has it."""
    assert "raised" in run.failure(run.plan(sends_in="vain"))
    assert run.notes.counted("refused")


@_scenario
def a_thread_of_a_job_sends_for_it_or_not_at_all(run: _ScenarioRun) -> None:
    """Without the context of the job, where several run at once: an error in place of a job that nobody awaits."""
    other = run.begin(run.plan("other", waits=True)) if not run.harness.runs_one_job else None
    if other is not None:
        run.until("begun", "other")
    done = run.finish(run.plan("job", [run.plan("child")], sends_in="thread"))
    if other is None:
        assert done == Counter(["job", "child"])
    else:
        assert run.has("refused", "UnattributedError")
        run.notes.open("other")
        run.wait(other)
        assert not run.has("begun", "child")


@_scenario
def a_thread_that_outlives_its_job_sends_nothing(run: _ScenarioRun) -> None:
    """It gets an error, since the tree may be over."""
    if not run.harness.threads_outlive:
        raise NotApplicable("processes of its worker end with their jobs")
    for where, error in (("late context", "TupleStateError"), ("late thread", "UnattributedError")):
        run.finish(run.plan(where, [run.plan("child")], sends_in=where))
        run.notes.open(f"late {where}")
        run.until("refused", error)
        assert not run.has("begun", "child")


@_scenario
def many_trees_at_once_end_with_their_own_jobs(run: _ScenarioRun) -> None:
    """Begun by several threads."""
    ends: dict[int, Counter[str]] = {}

    def work(tree_number: int) -> None:
        posts = [run.plan(f"{tree_number} post {number}") for number in range(4)]
        ends[tree_number] = run.finish(run.plan(f"{tree_number} job", posts))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(6):
        own = {name: count for name, count in ends[number].items() if name.startswith(f"{number} ")}
        assert own == {f"{number} {name}": 1 for name in ("job", "post 0", "post 1", "post 2", "post 3")}


SCENARIOS: tuple[Scenario, ...] = (
    a_tree_ends_with_its_last_grandchild,
    a_tree_is_open_while_a_grandchild_runs,
    many_trees_at_once_end_with_their_own_jobs,
    a_message_is_acked_after_its_last_job,
    a_message_whose_job_fails_is_tried_again_and_then_a_dead_letter,
    a_job_that_is_delivered_twice_counts_once,
    a_job_for_later_is_awaited,
    a_detached_job_is_not_awaited,
    a_retry_is_awaited_and_so_is_what_the_runs_before_it_sent,
    a_job_that_uses_up_its_retries_fails_the_tree,
    a_job_that_raises_fails_the_tree,
    a_job_that_fails_its_part_itself_fails_the_tree,
    a_job_that_fails_its_part_itself_and_raises_is_run_again,
    a_job_that_is_too_old_fails_the_tree,
    a_job_that_is_revoked_fails_the_tree,
    a_job_that_no_worker_knows_fails_the_tree,
    a_job_that_runs_into_its_time_limit_fails_the_tree,
    a_job_that_exits_runs_again_or_fails_the_tree,
    a_job_whose_process_is_killed_runs_again_or_fails_the_tree,
    a_job_whose_worker_is_killed_runs_again_or_fails_the_tree,
    a_job_that_the_queue_has_lost_is_named,
    a_report_waits_until_the_server_of_the_replies_answers,
    a_server_that_forgets_the_replies_fails_the_tree,
    a_job_of_an_owner_that_is_gone_is_skipped_where_this_is_wanted,
    a_report_to_a_tree_that_is_over_is_late,
    a_job_with_a_broken_token_runs,
    a_send_that_raises_fails_the_tree,
    a_thread_of_a_job_sends_for_it_or_not_at_all,
    a_thread_that_outlives_its_job_sends_nothing,
)
