"""The Spark benchmark at a tiny size, in the session of the tests: that it runs and checks its work."""

import pytest

from acker.bench import CASES
from acker.bench import spark as bench
from acker.bench.measure import TINY
from acker.bench.run import run_here, select
from acker.testing import Checksum

pytestmark = pytest.mark.spark


def test_all_sides_are_timed(spark):
    assert spark.getActiveSession() is not None  # which the case lends, instead of starting another one
    (case,) = select(CASES, ["spark"])
    measured = run_here(case, TINY).as_json()
    assert set(measured["samples"]) == {"bit_xor", "rows", "files"}
    assert {(ratio["of"], ratio["to"]) for ratio in measured["ratios"]} == {("rows", "bit_xor"), ("bit_xor", "files")}
    assert measured["checksum"]["completions"] > 400


def test_a_tree_that_is_missing_is_noticed(spark, monkeypatch):
    def with_one_more(folder, *args, write=bench.write_messages, **options):
        right = write(folder, *args, **options)
        return Checksum(right.completions + 1, right.root_xor)

    monkeypatch.setattr(bench, "write_messages", with_one_more)
    with pytest.raises(AssertionError, match="trees acked from rows"):
        bench.batch(TINY)
