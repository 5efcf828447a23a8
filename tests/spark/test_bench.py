"""The Spark benchmark at a tiny size: that it runs, checks its work and can be reported. Never how fast anything is."""

import pyarrow.parquet as pq
import pytest

from acker.bench.measure import TINY
from acker.bench.spark import CASES, batch, checksum_of, write_messages
from acker.spark import completions

pytestmark = pytest.mark.spark


def test_both_ways_are_measured_against_the_xor_alone(spark):
    (case,) = CASES
    result = case.run(TINY)
    assert case.run is batch
    assert result.checksum == {"completions": 500, "root_xor": -974365843336619368}
    assert {side: len(samples) for side, samples in result.samples.items()} == dict.fromkeys(
        ("bit_xor", "rows", "files"), 2
    )
    assert [(ratio.of, ratio.to) for ratio in result.ratios] == [("rows", "bit_xor"), ("bit_xor", "files")]
    assert spark.range(1).count() == 1  # A session that was there before is not stopped.


def test_the_workload_is_what_its_checksum_says(spark, tmp_path):
    expected = write_messages(tmp_path, 1001, pending=40, files=3)
    rows = [pq.read_metadata(path).num_rows for path in sorted(tmp_path.iterdir())]
    assert rows == [333 + 40, 333, 335]
    assert checksum_of(completions(spark.read.parquet(str(tmp_path)))) == expected
