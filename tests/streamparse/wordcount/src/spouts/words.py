from itertools import cycle

import streamparse


class WordSpout(streamparse.Spout):
    outputs = ["word"]

    def initialize(self, stormconf, context):
        self.words = cycle(["dog", "cat", "zebra", "elephant"])
        self.limit = stormconf.get("user.words.limit")
        self.emitted = 0
        self.acked = set()

    def next_tuple(self):
        if self.emitted == self.limit:
            return
        self.emitted += 1
        self.emit([next(self.words)], tup_id=self.emitted)

    def ack(self, tup_id):
        self.acked.add(tup_id)

    def fail(self, tup_id):
        self.log(f"word number {tup_id} failed", level="error")
