"""Word count as a topology, run in threads of this process.

Run it: python examples/topology.py

`Lines` emits each line with an id, so the acker tracks it. If `Count` refuses a word, its line fails. The spout sends
the line again, and gives up after a second failure. The other word of that line is counted in both attempts, because
each bolt processes a tuple at least once.
"""

from typing import Any

from acker.local import run
from acker.topology import Bolt, Grouping, Reason, ReliableSpout, Topology, Tuple

TEXT = ["the storm and the acker", "an acker for python", "python 4", "the end"]


class Lines(ReliableSpout):
    outputs = ["line"]
    attempts_max = 2  # one more attempt after the first failure
    backoff_secs = 0.01

    def initialize(self, conf: Any, context: Any) -> None:
        self.lines = enumerate(TEXT, 1)

    def next_tuple(self) -> None:
        for number, line in self.lines:
            self.emit([line], tup_id=number)
            return
        self.finish()  # nothing new will come

    def dead_letter(self, tup_id: Any, values: Any, reason: Reason) -> None:
        print(f"line {tup_id} was given up: {reason.exception}")


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup: Tuple) -> None:
        for word in tup.line.split():
            self.emit([word])  # anchored to tup, which is acked when process returns


class Count(Bolt):
    outputs = ["word", "count"]

    def initialize(self, conf: Any, context: Any) -> None:
        self.counts: dict[str, int] = {}

    def process(self, tup: Tuple) -> None:
        if not tup.word.isalpha():
            raise ValueError(f"{tup.word!r} is no word")  # fails the tuple, and so its line
        self.counts[tup.word] = self.counts.get(tup.word, 0) + 1
        self.emit([tup.word, self.counts[tup.word]])


class Print(Bolt):
    def process(self, tup: Tuple) -> None:
        print(f"{tup.word}: {tup.count}")


class WordCount(Topology):
    lines = Lines.spec()
    split = Split.spec(inputs=[lines], par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)
    show = Print.spec(inputs=[count])


if __name__ == "__main__":
    report = run(WordCount, until="drained")
    print(f"{report.outcome}: {report.stats.totals.acked} of {len(TEXT)} lines were acked")
