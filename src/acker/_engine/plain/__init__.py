"""Plain Python in the place of the compiled module: every name of `acker._core` that Spark's side needs.

For where no compiled module can go, as with a zip for ``--py-files``; chosen by ``ACKER_IMPLEMENTATION=python`` alone.
Results, partials and blocks are those of the compiled module, to the byte. In the place of `acker.Acker` stands
`acker.ReferenceAcker`. Topologies have no twin.
"""

from acker._engine.plain.combine import CombineTable, shards_of, xxh64
from acker._engine.plain.open_trees import OpenTreesTable, open_trees_bytes
from acker._engine.plain.sharded import ShardedAcker

__all__ = [
    "CombineTable",
    "OpenTreesTable",
    "ShardedAcker",
    "compiled_with",
    "kernels",
    "open_trees_bytes",
    "shards_of",
    "xxh64",
]


def kernels() -> tuple[str, ...]:
    """Return the names of the kernels: there is one."""
    return ("python",)


def compiled_with() -> str:
    """Return the compiler: there was none."""
    return "none"
