"""`PublishBolt` and `ArrowPublishBolt` on Spark: tuples are acked when their messages are confirmed, within the
micro-batch.
"""

import json
import time

import pytest

from acker.connectors import ArrowPublishBolt, ArrowSourceSpout, DeadLetterFile, PublishBolt
from acker.spark import run
from acker.testing.connectors import MemoryBroker, MemorySource
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
    broker = MemoryBroker()
    broker.publish(b"%d" % number for number in range(MESSAGES))
    rows, columns = tmp_path / "rows", tmp_path / "columns"

    class Numbered(Topology):
        numbers = Numbers.spec()
        publish = PublishBolt.spec(inputs=[numbers], publisher=lambda: SlowFile(str(rows)))
        bodies = ArrowSourceSpout.spec(source=lambda: MemorySource(broker))
        publish_rows = ArrowPublishBolt.spec(inputs=[bodies], publisher=lambda: SlowFile(str(columns)))

    report = run(Numbered, spark=spark, until=str(2 * MESSAGES))
    stats = report.stats.components()
    for spout, bolt in (("numbers", "publish"), ("bodies", "publish_rows")):
        assert (stats[spout].acked, stats[spout].failed, stats[bolt].acked) == (MESSAGES, 0, MESSAGES)
    for path in (rows, columns):
        published = [int(json.loads(line)["value"]) for line in path.read_text().splitlines()]
        assert sorted(published) == list(range(MESSAGES))
    assert sorted(map(int, broker.acked)) == list(range(MESSAGES)) and broker.violations == []
    assert stats["publish_rows"].user["batches"] < MESSAGES
