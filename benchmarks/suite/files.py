"""Benchmarks of files that are settled without Spark, against DuckDB on the same Parquet files and as many threads.

DuckDB answers twice. ``bit_xor(value) GROUP BY root_id`` is a lower bound for any answer: it reads two of the five
columns and keeps one number a tree, knows no FAIL, and takes a TRACK that was delivered twice for a finished tree. The
other query gives the rows that acker gives, by the rules of combined messages.
"""

from __future__ import annotations

import importlib.metadata
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import acker
from acker.testing.streams import Checksum
from benchmarks.suite.measure import Alternation, Case, Goal, Ratio, Result, Scale, expect, per, wall_ns
from benchmarks.suite.spark import CORES, FILES, MESSAGES, OKS, PENDING, ROW_GROUP_ROWS, write_messages
from benchmarks.suite.workloads import SEED

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

ACKER, BIT_XOR, SAME_ROWS = "acker", "DuckDB, bit_xor", "DuckDB, same rows"

_BIT_XOR: Final = "SELECT root_id, bit_xor(value) AS ack_val FROM read_parquet('{files}') GROUP BY root_id"
# Of several TRACKs one of least value counts here, where acker takes the one of least rank: less work.
_SAME_ROWS: Final = """
    SELECT root_id,
           arg_min(message_id, value) FILTER (kind = 0) AS message_id,
           arg_min(task_id, value) FILTER (kind = 0) AS task_id,
           CASE WHEN coalesce(bit_xor(value) FILTER (kind IN (1, 2)), 0) = min(value) FILTER (kind = 0) THEN 0
                WHEN bool_or(kind = 3) THEN 1 END AS outcome
    FROM read_parquet('{files}')
    GROUP BY root_id
    HAVING bool_or(kind = 0) AND outcome IS NOT NULL
"""


def _acked(side: str, found: Any) -> Checksum:
    """Return how many trees ended ACKED by the answer of a side, and the xor of their root ids."""
    if side == ACKER:
        return Checksum().add(found.root_id[found.outcome == acker.Outcome.ACKED])
    finished = found["ack_val" if side == BIT_XOR else "outcome"].to_numpy() == 0
    return Checksum().add(found["root_id"].to_numpy()[finished])


def against_duckdb(scale: Scale) -> Result:
    """Time the three sides over the same files, each answer whole in memory."""
    import duckdb

    messages, pending = scale.size(MESSAGES, 1000), scale.size(PENDING, 40)
    with tempfile.TemporaryDirectory() as name, duckdb.connect(config={"threads": CORES}) as connection:
        connection.sql("SET enable_progress_bar = false")
        expected = write_messages(Path(name), messages, pending=pending)

        def ask(query: str) -> Callable[[None], pa.Table]:
            return lambda _: connection.sql(query.format(files=f"{name}/*.parquet")).to_arrow_table()

        sides: dict[str, Callable[[None], Any]] = {
            ACKER: lambda _: acker.completions_from_files(name, threads=CORES),
            BIT_XOR: ask(_BIT_XOR),
            SAME_ROWS: ask(_SAME_ROWS),
        }

        def check(side: str, _: None, found: Any) -> None:
            expect(f"trees acked by {side}", _acked(side, found), expected)

        taken = Alternation(sides, check, wall_ns).run([None] * (scale.pairs + 1))
    ratios = [
        Ratio(ACKER, BIT_XOR, scale.goal(Goal(at_most=1.0))),
        Ratio(ACKER, SAME_ROWS, scale.goal(Goal(at_most=0.7))),
    ]
    parameters: dict[str, Any] = {
        "messages": messages,
        "pending": pending,
        "oks": OKS,
        "files": FILES,
        "row_group_rows": ROW_GROUP_ROWS,
        "threads": CORES,
        "duckdb": importlib.metadata.version("duckdb"),
        "seed": SEED,
    }
    return Result("ns/message", per(taken, messages), ratios, parameters, expected._asdict())


CASES: Final = [
    Case(
        "files/duckdb",
        "How long does it take to settle files without Spark, against DuckDB on the same files?",
        against_duckdb,
        needs=("duckdb", "pyarrow"),
    )
]
