"""The holders of open trees, looked for by another thread while tuples move."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from acker.local import LocalRuntime
from acker.local.calls import running_calls
from acker.local.page.holders import find_holders
from acker.topology import Bolt, Grouping, Spout, Topology

NUMBERS = 4_000


class Numbers(Spout):
    outputs = ["number"]

    def initialize(self, conf, context):
        self.left = iter(range(NUMBERS))

    def next_tuple(self):
        for number in self.left:
            self.emit([number], tup_id=number)
            return
        self.finish()


class Parts(Bolt):
    outputs = ["part"]

    def process(self, tup):
        for part in range(4):
            self.emit([(tup.number, part)])


class Count(Bolt):
    def initialize(self, conf, context):
        self.count = 0

    def process(self, tup):
        self.count += 1


class Sums(Topology):
    numbers = Numbers.spec()
    parts = Parts.spec(inputs=[numbers], par=2)
    count = Count.spec(inputs={parts: Grouping.fields("part")}, par=2)


def test_holders_are_found_while_all_executors_work() -> None:
    seen = Counter[str]()
    with LocalRuntime(Sums) as runtime, ThreadPoolExecutor(1) as pool:
        drained = pool.submit(runtime.run_until, "drained")
        while not drained.done():
            executors = runtime.lifecycle.executors
            assert executors is not None
            spouts = list(executors.spout_tasks())
            roots = [open_.root_id for task in spouts for open_ in task.collector.pending.copy().values()]
            now_ns = runtime.clock.now_ns()
            found = find_holders(executors, roots, running_calls(executors, now_ns), now_ns)
            assert found.keys() == set(roots)
            seen.update(holder.component for holders in found.values() for holder in holders)
        assert drained.result() == "drained"
        stats = runtime.stats().components()
    assert (stats["numbers"].acked, stats["count"].acked) == (NUMBERS, 4 * NUMBERS)
    assert seen.keys() <= {"numbers", "parts", "count"}
