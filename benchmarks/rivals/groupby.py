"""Could a group-by do it? All messages at once, which trees are finished: NumPy, polars, DuckDB, and the native table.

The rivals are given their own form of the columns before the clock starts, and one thread. Processor time of the whole
process is counted. They answer a question that is easier than the acker's: they keep no state between batches, expire
nothing, and report neither message ids nor FAILs.
"""

import os
from functools import partial
from itertools import repeat

import numpy as np

from acker import Acker, Kind
from acker._engine.columns import Columns
from acker._engine.combiner import Combiner
from acker.testing import Checksum, TreeStream
from benchmarks.suite.ingest import cut
from benchmarks.suite.measure import Alternation, Case, Ratio, Result, expect, per, process_ns
from benchmarks.suite.workloads import SEED

MESSAGES = 5_000_000
PENDING = 20_000
BATCH_ROWS = 10_000


def numpy_sort(columns):
    kind, root_id, value = columns.kind, columns.root_id, columns.value

    def finished(_):
        order = np.argsort(root_id)
        roots = root_id[order]
        first = np.flatnonzero(np.r_[True, roots[1:] != roots[:-1]])
        xor = np.bitwise_xor.reduceat(value[order], first)
        tracked = np.minimum.reduceat(kind[order], first) == Kind.TRACK
        return roots[first][tracked & (xor == 0)]

    return finished


def polars_group_by(columns):
    os.environ["POLARS_MAX_THREADS"] = "1"
    import polars as pl

    frame = pl.DataFrame({name: getattr(columns, name) for name in ("kind", "root_id", "value")})

    def finished(_):
        trees = frame.group_by("root_id").agg(pl.col("value").bitwise_xor(), pl.col("kind").min())
        return trees.filter((pl.col("value") == 0) & (pl.col("kind") == Kind.TRACK))["root_id"].to_numpy()

    return finished


def duckdb_bit_xor(columns):
    import duckdb
    import pyarrow as pa

    given = pa.table({name: getattr(columns, name) for name in ("kind", "root_id", "value")})
    connection = duckdb.connect(config={"threads": 1})
    connection.register("given", given)
    connection.execute("CREATE TABLE messages AS SELECT * FROM given")
    query = "SELECT root_id FROM messages GROUP BY root_id HAVING bit_xor(value) = 0 AND min(kind) = 0"

    def finished(_):
        return connection.execute(query).fetchnumpy()["root_id"]

    return finished


def native_acker(columns):
    batches = cut(columns, BATCH_ROWS)

    def finished(_):
        acker = Acker(seed=SEED)
        return np.concatenate([acker.ingest(*batch).root_id for batch in batches])

    return finished


def native_combiner(columns):
    batches = cut(columns, BATCH_ROWS)

    def finished(_):
        combiner = Combiner(seed=SEED)
        for batch in batches:
            combiner.add(*batch)
        return combiner.settle().root_id

    return finished


RIVALS = {"NumPy": numpy_sort, "polars": polars_group_by, "DuckDB": duckdb_bit_xor, "combiner": native_combiner}


def against(rival, scale):
    """Find the finished trees of millions of messages."""
    stream = TreeStream(scale.size(PENDING, 40), 4, seed=SEED)
    opening = list(stream.prefill())
    messages = [*opening, stream.take(scale.size(MESSAGES, 1000))]
    columns = Columns(*map(np.concatenate, zip(*messages, strict=True)))
    sides = {rival: RIVALS[rival](columns), "acker": native_acker(columns)}

    def check(side, _, roots):
        expect(f"trees that {side} finished", Checksum().add(roots.astype(np.int64, copy=False)), stream.expected)

    samples = Alternation(sides, check, process_ns).run(repeat(None, min(scale.pairs, 5) + 1))
    parameters = {
        "messages": columns.kind.size,
        "pending": scale.size(PENDING, 40),
        "batch_rows": BATCH_ROWS,
        "seed": SEED,
    }
    ratios = [Ratio(rival, "acker")]
    return Result("ns/message", per(samples, columns.kind.size), ratios, parameters, stream.expected._asdict())


NEEDS = {"polars": ("polars",), "DuckDB": ("duckdb", "pyarrow")}
CASES = [
    Case(
        f"groupby/{name}",
        f"How does {name} compare, given all messages at once?",
        partial(against, name),
        NEEDS.get(name, ()),
    )
    for name in RIVALS
]
