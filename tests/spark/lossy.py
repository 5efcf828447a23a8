"""A link that loses rows on purpose: no message is sent for them, so their trees stay open."""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle

from acker.spark.pipelines.tracked import Tracked
from acker.spark.pipelines.transforms import Flow

# The workers cannot import the tests; this module travels as code.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class LossyLink:
    """Loses the rows whose value in a column is the lost one; None loses nothing."""

    column: str
    lost: Any

    def run(self, flows, collector):
        for rows, anchors in flows:
            values = rows.column(self.column).to_pylist()
            kept = np.array([place for place, value in enumerate(values) if value != self.lost], np.int64)
            if kept.size:
                yield Flow(rows.take(pa.array(kept)), anchors.take(kept))


def lose(tracked: Tracked, column: str, lost: Any) -> Tracked:
    """Return the pipeline behind a link that loses rows."""
    return Tracked(tracked.plan.transform(LossyLink(column, lost)))
