"""The actions of the live page on a topology: pause, resume, fail a tree, replay dead letters, set the log level."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from acker._flow import AckSender
from acker.local.clock import Clock
from acker.local.executors.acker import AckerExecutor
from acker.local.executors.spout import SpoutTask
from acker.local.lifecycle import Lifecycle
from acker.local.page.open_trees import find_trees
from acker.local.wiring import ExecutorSet
from acker.observe.calls import UserCall
from acker.observe.failures import DeadLetter, FailureLog, shown_id
from acker.observe.headline import RunningJob
from acker.observe.holders import Holder
from acker.observe.reasons import Reason, ReasonKind
from acker.observe.run_report import RunReport
from acker.observe.stats import RuntimeStats
from acker.topology.graph import Graph
from acker.ui.actions import set_log_level
from acker.ui.source import Action, ActionError


class Observed(Protocol):
    """The part of a runtime that the live page uses."""

    graph: Graph
    conf: dict[str, Any]
    clock: Clock
    ackers: list[AckerExecutor]
    lifecycle: Lifecycle

    def stats(self) -> RuntimeStats:
        """Return the figures of this moment."""

    def report(self) -> RunReport:
        """Return the report of the run."""

    def find_holders(
        self, executors: ExecutorSet, roots: Collection[int], calls: Mapping[int, UserCall], now_ns: int
    ) -> Mapping[int, list[Holder]]:
        """Return who holds the tuples of open trees, by their root ids, while these calls run."""

    def find_calls(self, executors: ExecutorSet, now_ns: int) -> Mapping[int, UserCall]:
        """Return the calls of user code that run now, by task."""

    def find_job(self, now_ns: int) -> RunningJob | None:
        """Return the job of Spark that runs, if one does."""

    def more_tables(self) -> list[dict[str, Any]]:
        """Return the tables of the page that only this kind of runtime has."""

    def pause(self) -> None:
        """Pause the spouts."""

    def resume(self) -> None:
        """Activate the spouts again."""


class RuntimeActions:
    """Carries out the actions. Any thread may call them.

    Parameters
    ----------
    runtime : LocalRuntime
    failures : FailureLog
        Has the dead letters.

    Attributes
    ----------
    by_name : dict of str to Action
    """

    def __init__(self, runtime: Observed, failures: FailureLog) -> None:
        self._runtime = runtime
        self._failures = failures
        self.by_name: dict[str, Action] = {
            "pause": self._pause,
            "resume": self._resume,
            "fail": self._fail,
            "replay": self._replay,
            "log-level": set_log_level,
        }

    def _pause(self, _: Mapping[str, Any]) -> str:
        self._runtime.pause()
        return "paused the spouts"

    def _resume(self, _: Mapping[str, Any]) -> str:
        self._runtime.resume()
        return "resumed the spouts"

    def _fail(self, arguments: Mapping[str, Any]) -> str:
        root_id = arguments.get("root_id")
        if not isinstance(root_id, str):
            raise ActionError('expected {"root_id": "..."}, the text that /api/view has')
        trees = [tree for tree in find_trees(self._executors(), root_id) if str(tree.root_id) == root_id]
        if not trees:
            raise ActionError("this tree is not open any more")
        # A sender of its own, as for every thread that is no executor's.
        sender = AckSender([acker.inbox for acker in self._runtime.ackers])
        sender.fail([int(root_id)], Reason(ReasonKind.FAILED, exception="failed by hand, from the live page"))
        sender.send()
        return f"failed the tree of {shown_id(trees[0].tup_id)}"

    def _replay(self, arguments: Mapping[str, Any]) -> str:
        letters = self._failures.dead_letters()
        if arguments.get("all") is not True:
            letters = [each for each in letters if each.number == arguments.get("number")]
        if not letters:
            raise ActionError('there is no such dead letter: expected {"number": ...} or {"all": true}')
        if not any(letter.can_replay for letter in letters):
            raise ActionError("it cannot be emitted again from here; beside the list stands why, and where it lies")
        # In between, nobody calls the spouts, and a request would be lost with its executor.
        if (state := self._runtime.lifecycle.state) != "running":
            raise ActionError(f"the topology is {state}: dead letters are replayed while it runs")
        # The oldest one first, as they were given up.
        replayed = [letter for letter in reversed(letters) if letter.can_replay and self._replay_one(letter)]
        what = shown_id(replayed[0].tup_id) if len(replayed) == 1 else f"{len(replayed):,} dead letters"
        return f"replayed {what}"

    def _replay_one(self, letter: DeadLetter) -> bool:
        for executor in self._executors().spouts:
            for task in executor.tasks:
                collector = task.collector
                if (collector.component, collector.task) == (letter.component, letter.task):
                    executor.request(functools.partial(self._revive, task, letter))
                    return True
        return False

    def _revive(self, task: SpoutTask, letter: DeadLetter) -> None:
        """Have a dead letter emitted again, unless it was before; the task's executor calls this.

        Not before that is it forgotten: a spout that hangs or crashes calls nothing.
        """
        if not self._failures.forget(letter):
            return
        replays = task.replays
        assert replays is not None
        if not replays.revive(letter.tup_id, letter.entry, task.collector.now_ms()):
            task.spout.logger.warning("dead letter %r is not replayed: a tuple of this id is open", letter.tup_id)

    def _executors(self) -> ExecutorSet:
        executors = self._runtime.lifecycle.executors
        if executors is None or self._runtime.lifecycle.state == "stopped":
            raise ActionError("the topology does not run")
        return executors
