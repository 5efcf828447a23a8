"""`PublishBolt` on Spark: its tuples are acked when their messages are confirmed, within the micro-batch."""

import json
import time
from pathlib import Path

import pytest

from acker.connectors import DeadLetterFile, PublishBolt
from acker.spark import run
from acker.topology import ReliableSpout, Topology

pytestmark = pytest.mark.spark

MESSAGES = 60


class Numbers(ReliableSpout):
    outputs = ["value"]

    def initialize(self, conf, context):
        self.left = list(range(MESSAGES))

    def next_tuple(self):
        if not self.left:
            return self.finish()
        number = self.left.pop()
        return self.emit([str(number)], tup_id=number)


class SlowFile(DeadLetterFile):
    """A publisher of one message at a time, so that many wait for it when the micro-batch ends."""

    def write(self, messages):
        answers = []
        for message in messages:
            time.sleep(0.01)
            answers += super().write([message])
        return answers


def test_each_tuple_is_acked_when_it_is_confirmed(spark, tmp_path):
    path = str(tmp_path / "published")

    class Numbered(Topology):
        numbers = Numbers.spec()
        publish = PublishBolt.spec(inputs=[numbers], publisher=lambda: SlowFile(path))

    report = run(Numbered, spark=spark, until="drained")
    assert report.stats.totals.acked == MESSAGES
    assert report.stats.components()["numbers"].failed == 0
    published = [int(json.loads(line)["value"]) for line in Path(path).read_text().splitlines()]
    assert sorted(published) == list(range(MESSAGES))
