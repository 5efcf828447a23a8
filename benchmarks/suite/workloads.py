"""The named workloads: numbers of pending trees, and the mix of messages.

The numbers of pending trees tell cache from memory: the tables of s20k and p100 fit into a core's own cache, that of
k20 into the shared one, and those of m1 and m2 into neither.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from acker.testing.streams import TreeStream
from benchmarks.suite.measure import Scale

SEED: Final = 42


class Workload(NamedTuple):
    """A stream of trees of one TRACK and `oks` OKs, `pending` of them open at once.

    Attributes
    ----------
    text : str
        What it stands for.
    fail_share, reset_share : float
        Of the messages.
    window_rows : int
        Messages that are timed at once.
    """

    text: str
    pending: int
    oks: int
    fail_share: float = 0.0
    reset_share: float = 0.0
    window_rows: int = 1_000_000

    def stream(self, scale: Scale) -> TreeStream:
        """Return the stream at a scale, from its beginning."""
        return TreeStream(
            scale.size(self.pending, 40), self.oks, fail_share=self.fail_share, reset_share=self.reset_share, seed=SEED
        )


WORKLOADS: Final = {
    "m1": Workload("4 OKs a tree, 800,000 pending", 800_000, 4),
    "m2": Workload("4 OKs a tree, 6.4 million pending", 6_400_000, 4),
    "k20": Workload("20 OKs a tree, 200,000 pending", 200_000, 20),
    "s20k": Workload("4 OKs a tree, 20,000 pending", 20_000, 4),
    "p100": Workload("4 OKs a tree, 100 pending", 100, 4),
    "mixed": Workload("as m1, with 5 % FAIL and 5 % RESET_TIMEOUT", 800_000, 4, 0.05, 0.05),
}
