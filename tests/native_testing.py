"""What a native module that was built for tests can do: look into its tables, and run out of memory.

scripts/setup.sh builds it so (ACKER_TESTING=1 in setup.py). A wheel cannot: its tests leave out those with the mark
native_testing, and look into no native table.
"""

from pathlib import Path
from typing import Any

from acker import ReferenceAcker, _core

TESTING = hasattr(_core, "fail_allocations_after")
core: Any = _core

if not TESTING and Path(_core.__file__).is_relative_to(Path(__file__).resolve().parents[1] / "src"):
    raise ImportError(
        f"{_core.__file__} was not built for tests. Run a target such as `make quick`, or compile in place: "
        "ACKER_TESTING=1 sh scripts/in_env.sh python setup.py build_ext --inplace --force"
    )


def fail_allocations_after(successes: int) -> None:
    """Let `successes` more requests for table memory succeed and every later one fail; -1: all succeed."""
    core.fail_allocations_after(successes)


def probes(acker: Any) -> int:
    """Return how many lines a look-up of every entry visits: a count that shows how well the hash spreads."""
    return int(core.probes(acker._core))


def is_sound(held: Any) -> bool:
    """Return whether the tables of an acker, or of open trees, agree with themselves and with the counts. O(slots)."""
    if isinstance(held, ReferenceAcker):
        return _is_reference_sound(held)
    native = getattr(held, "_core", None) or getattr(held, "_table", held)
    if not TESTING:
        return True
    return bool((core.check_open_trees if isinstance(native, _core.OpenTreesTable) else core.check_invariants)(native))


def check_invariants(held: Any) -> None:
    """Raise AssertionError unless `is_sound`."""
    if not is_sound(held):
        raise AssertionError(f"the tables of this {type(held).__name__} contradict themselves")


def _is_reference_sound(acker: ReferenceAcker) -> bool:
    with acker._alone():
        trees = acker._trees
        held = [(root, tree) for bucket in trees.buckets for root, tree in bucket.items()]
        ended = sum(trees.counts[name] for name in ("acked", "failed", "timed_out"))
        return (
            len({root for root, _ in held}) == len(held)
            and sum(tree.task_id is not None for _, tree in held) == trees.open
            and trees.counts["tracked"] == ended + trees.open
        )
