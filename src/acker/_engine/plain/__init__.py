"""The tables of the compiled module in plain Python, for Spark jobs that are shipped as a zip (``--py-files``).

A zip can hold no compiled module; ``ACKER_IMPLEMENTATION=python`` alone chooses these. Results, partials and blocks
equal those of the compiled module byte by byte. `acker.ReferenceAcker` takes the place of `acker.Acker`. Topologies
need the compiled module.
"""

from acker._engine.plain.combine import CombineTable, shards_of, xxh64, xxh64_each
from acker._engine.plain.open_trees import OpenTreesTable, open_trees_bytes
from acker._engine.plain.sharded import ShardedAcker
from acker._engine.plain.tuple_tree import Anchoring, Tracking, TreeBase

__all__ = [
    "SLICE_ROWS",
    "Anchoring",
    "CombineTable",
    "OpenTreesTable",
    "ShardedAcker",
    "Tracking",
    "TreeBase",
    "compiled_with",
    "kernels",
    "open_trees_bytes",
    "shards_of",
    "xxh64",
    "xxh64_each",
]

# As of the compiled module.
SLICE_ROWS = 1 << 20


def kernels() -> tuple[str, ...]:
    """Return the name of the only kernel."""
    return ("python",)


def compiled_with() -> str:
    """Return "none": no compiler was used."""
    return "none"
