"""A driver that writes completions to Kafka, and is killed at a step of a transaction; without Spark.

Run it: python -m tests.connectors.kafka_sink_kills URL TOPIC QUERY FIRST LAST STEP NUMBER

It writes the micro-batches from FIRST to LAST. At a step of `STEPS`, when it is reached for that time, it and all
processes of its group are killed.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from acker import Completions, Outcome
from acker.connectors.kafka import KafkaSink, sink

# Step -> a method of the client, and whether the step is before or after it.
STEPS = {
    "before a transaction": ("begin_transaction", True),
    "written": ("send_offsets_to_transaction", True),
    "before the commit": ("commit_transaction", True),
    "committed": ("commit_transaction", False),
}
SIZE = 3
# A slow machine may take long for a transaction, which the next driver aborts if this one cannot.
PATIENT = {"transaction.timeout.ms": 600_000}


def die_at(step: str, number: int) -> None:
    """Let this process and its group be killed at a step."""
    name, is_before = STEPS[step]
    left = [None] * number

    def reach() -> None:
        left.pop()
        if not left:
            os.killpg(0, signal.SIGKILL)

    def call(self: Any, *arguments: Any) -> Any:
        if is_before:
            reach()
        returned = getattr(super(Dying, self), name)(*arguments)
        if not is_before:
            reach()
        return returned

    class Dying(sink.Producer):
        """The client, with a step."""

    setattr(Dying, name, call)
    sink.Producer = Dying  # type: ignore[misc]


def completions_of(batch_id: int) -> Completions:
    """Return what a micro-batch brings."""
    messages = range(SIZE * batch_id, SIZE * batch_id + SIZE)
    return Completions.from_rows([(100 + message, message, 0, Outcome(message % 3), 5) for message in messages])


def write_all(write: Callable[[Completions, int], None], first: int, last: int) -> None:
    """Write micro-batches."""
    for batch_id in range(first, last + 1):
        write(completions_of(batch_id), batch_id)


if __name__ == "__main__":
    url, topic, query, first, last, step, number = sys.argv[1:]
    die_at(step, int(number))
    target = KafkaSink({"bootstrap.servers": url, **PATIENT}, topic)
    write_all(lambda done, batch_id: target.write(done, batch_id, query), int(first), int(last))
