"""Which bolt of a pipeline runs now, and with the row of which tree."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from acker.spark.pipelines.stage_calls import StageCalls
from acker.spark.pipelines.user_functions import run_rows
from acker.topology.anchors import single

NUMBERS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
ROOTS = single(np.array([77, 78]), np.array([1, 2]), np.array([True, False, True]))


def test_the_row_whose_function_runs_is_known_with_its_tree() -> None:
    calls, seen = StageCalls(), []

    def look(row):
        seen.append(calls.place())
        return [row.n]

    assert calls.place() is None
    for _ in range(2):
        run_rows(look, NUMBERS, pa.schema({"n": pa.int64()}), calls.begin("parse", ROOTS, by_row=True))
        calls.end()
    assert calls.place() is None
    assert [(each.component, each.root_id, each.done) for each in seen] == [
        ("parse", root_id, done) for done, root_id in enumerate([77, None, 78] * 2)
    ]
    assert len({each.mark for each in seen}) == 6


def test_of_a_function_that_gets_a_batch_no_tree_is_named() -> None:
    calls = StageCalls()
    calls.begin("join", ROOTS, by_row=False)
    place = calls.place()
    assert place is not None
    assert (place.component, place.root_id, place.done) == ("join", None, 0)
