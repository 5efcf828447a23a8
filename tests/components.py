"""Components that tests of several folders use; Spark's workers import them."""

from __future__ import annotations

from acker.topology import Spout


class Numbers(Spout):
    """Emits 3, 2 and 1, each with itself as the tuple id."""

    outputs = ("number",)

    def initialize(self, conf, context):
        self.left = [1, 2, 3]

    def next_tuple(self):
        if not self.left:
            self.finish()
            return
        number = self.left.pop()
        self.emit([number], tup_id=number)
