"""The tasks that hold the tuples of open trees, as runtimes name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

# Of how many trees the last holders are remembered.
_SEEN_MAX: Final = 1_000

How = Literal["process", "queue", "held", "outcome", "maybe"]


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that holds a tuple of a tree.

    Attributes
    ----------
    component : str
    task : int or None
        None: what holds it is no task, such as a micro-batch.
    how : {"process", "queue", "held", "outcome", "maybe"}
        process: it is inside user code with the tuple, or will send or ack it when that returns. queue: it waits for
        the task. held: the task has processed it, and neither acked nor failed it. outcome: the tree has ended, and its
        spout has not taken the outcome. maybe: as held, but other tasks hold tuples too, and which of them holds this
        one is not known without a trace.
    for_ms : int or None
        How long it has been there, as far as known; of an outcome, how long the spout has been inside user code.
    text : str or None
        Words for the page in place of `how`.
    line : str or None
        The line where its call stands now, if one runs.
    """

    component: str
    task: int | None
    how: How
    for_ms: int | None = None
    text: str | None = None
    line: str | None = None


class SeenHolders:
    """The holders that old trees were seen with last: where a tree was when it timed out. One thread adds."""

    def __init__(self) -> None:
        self._by_root: dict[int, list[Holder]] = {}

    def note(self, root_id: int, holders: list[Holder]) -> None:
        """Note the holders of a tree; the trees that were noted longest ago are forgotten."""
        self._by_root.pop(root_id, None)
        self._by_root[root_id] = holders
        while len(self._by_root) > _SEEN_MAX:
            del self._by_root[next(iter(self._by_root))]

    def of(self, root_id: int | None) -> list[Holder]:
        """Return the holders of a tree, as far as they are known."""
        return [] if root_id is None else self._by_root.get(root_id, [])
