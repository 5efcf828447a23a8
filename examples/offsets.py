"""A consumer of a log that commits only finished offsets.

Run it: python examples/offsets.py

A log such as Kafka keeps one number for each partition: the offset from which a consumer reads after a restart. Tuples
finish in any order, and this number must not pass an offset that is still open. `OffsetTracker` gives the highest safe
number. In your program, replace `LOG` and `committed` with your client's `consumer.poll` and `consumer.commit`.
"""

import random
from typing import Any

from acker.local import run
from acker.offsets import OffsetTracker
from acker.topology import Bolt, Reason, ReliableSpout, Topology, Tuple

LOG = [(partition, offset, f"event {offset}") for offset in range(5) for partition in (0, 1)]
committed: dict[int, int] = {}


class Log(ReliableSpout):
    outputs = ["event"]
    attempts_max = 3
    backoff_secs = 0.01

    def initialize(self, conf: Any, context: Any) -> None:
        self.tracker, self.unread = OffsetTracker(), iter(LOG)
        for partition in (0, 1):
            self.tracker.assign(partition, committed.get(partition, 0))

    def next_tuple(self) -> None:
        for partition, offset, event in self.unread:
            if self.tracker.emitted(partition, offset):
                self.emit([event], tup_id=(partition, offset))
            return
        self.finish()

    def ack(self, tup_id: Any) -> None:
        super().ack(tup_id)
        self.tracker.acked(*tup_id)
        self.commit()

    def fail(self, tup_id: Any, reason: Reason | None = None) -> None:
        self.tracker.failed(*tup_id)  # it stays open: it will be sent again
        super().fail(tup_id, reason)

    def dead_letter(self, tup_id: Any, values: Any, reason: Reason) -> None:
        self.tracker.dead_lettered(*tup_id)  # given up: the commit may pass it
        self.commit()

    def commit(self) -> None:
        moved = self.tracker.committable()  # a real consumer commits every few seconds, not at each ack
        if moved:
            print("commit", moved)
        committed.update(moved)
        self.tracker.committed(moved)


class Work(Bolt):
    def process(self, tup: Tuple) -> None:
        if random.random() < 0.2:
            raise ConnectionError("try again")


class Events(Topology):
    log = Log.spec()
    work = Work.spec(inputs=[log], par=4)


if __name__ == "__main__":
    run(Events, until="drained")
    print("at the end:", dict(sorted(committed.items())))
