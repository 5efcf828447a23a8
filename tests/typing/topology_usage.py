"""A topology as typed code writes it. Never run: mypy checks it."""

from collections.abc import Mapping
from typing import Any

from acker.topology import (
    BatchingBolt,
    Bolt,
    Graph,
    Grouping,
    Reason,
    ReliableSpout,
    Stream,
    TicklessBatchingBolt,
    Topology,
    Tuple,
    auto_ack_bolt,
    reliable_spout,
    stable_hash,
    stable_hash_column,
)


class Lines(ReliableSpout):
    outputs = ["line"]
    attempts_max = 6

    def initialize(self, conf: Mapping[str, Any], context: Mapping[str, Any]) -> None:
        self.number: int = context["taskid"]
        self.backoff_secs = 0.5

    def next_tuple(self) -> None:
        tasks: list[int] | None = self.emit(["a line"], tup_id=self.number, need_task_ids=True)
        self.log(tasks, "debug")
        self.finish()

    async def ack(self, tup_id: Any) -> None:
        super().ack(tup_id)

    def fail(self, tup_id: Any, reason: Reason | None = None) -> None:
        super().fail(tup_id, reason)


class Split(Bolt):
    outputs = ["word", Stream(["line"], name="empty")]
    auto_ack = False

    async def process(self, tup: Tuple) -> None:
        words: list[str] = tup["line"].split()
        for word in words:
            self.emit([word], anchors=[tup])
        if not words:
            self.emit(tup.values, stream="empty")
        self.ack(tup)


class Count(BatchingBolt):
    ticks_between_batches = 2

    def group_key(self, tup: Tuple) -> int:
        assert stable_hash_column(tup[1]).dtype == "uint32"
        return stable_hash(tup[0])

    def process_batch(self, key: int, tups: list[Tuple]) -> None:
        self.report_metric("batches")
        self.emit([key, len(tups)])


class Log(TicklessBatchingBolt):
    secs_between_batches = 0.5


def first(values: tuple[Any, ...], tasks: Any) -> list[int]:
    return [tasks[0]]


class Words(Topology):
    config = {"topology.debug": True}
    lines = Lines.spec()
    more = reliable_spout(lambda args: (1, ["x"]), outputs=["line"]).spec(par=2)
    split = Split.spec(inputs={lines: Grouping.shuffle(), more: Grouping.LOCAL_OR_SHUFFLE}, par=4, executors=2)
    count = Count.spec(inputs={split: Grouping.fields("word")})
    log = Log.spec(inputs={split["empty"]: Grouping.custom(first)})
    end = auto_ack_bolt(lambda args, tup, emit: None).spec(inputs=["split"])


graph: Graph = Words.graph()
