"""The traced sample of trees, and the warnings when one of them times out or is open at the end."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable, Mapping

from acker.local.clock import Clock
from acker.local.observe.tracing import EdgeTraces
from acker.observe.reasons import Reason, ReasonKind

# Number of warnings that a report keeps: the last ones.
_TEXTS_MAX = 1000

# The outcomes that cause a warning, and how it names them.
_WARNED = {ReasonKind.TIMED_OUT: "timed out", ReasonKind.SHUTDOWN: "was open at the end"}

logger = logging.getLogger("acker.local")


class Sampler:
    """Traces one tree in `sample`, chosen by its root id, so that all tasks choose the same trees.

    Parameters
    ----------
    names : mapping
        Task id -> component.

    Attributes
    ----------
    texts : deque of str
        For each traced tree that timed out or was open at the end: which tasks held which tuples, for how long.
    """

    def __init__(self, clock: Clock, sample: int, names: Mapping[int, str]) -> None:
        self.traces = EdgeTraces(clock)
        self.texts: deque[str] = deque(maxlen=_TEXTS_MAX)
        self._sample = sample
        self._names = names

    def record_emit(self, ids: Mapping[int, int], task: int, component: str) -> None:
        """Record a delivery to a task."""
        for root_id, tuple_id in ids.items():
            if root_id % self._sample == 0:
                self.traces.record_emit(root_id, tuple_id, self._names[task], task, component)

    def record_settle(self, ids: Mapping[int, int], *, failed: bool) -> None:
        """Record that a tuple was acked or failed."""
        for root_id, tuple_id in ids.items():
            if root_id % self._sample == 0:
                (self.traces.record_fail if failed else self.traces.record_ack)(root_id, tuple_id)

    def record_end(self, root_id: int, component: str, tup_id: Hashable, reason: Reason | None) -> None:
        """Record that a tree ended; warn if it timed out or was open at the end."""
        if root_id % self._sample:
            return
        if reason is not None and reason.kind in _WARNED:
            text = f"{component}: {tup_id!r} {_WARNED[reason.kind]}: {self.traces.describe(root_id)}"
            self.texts.append(text)
            logger.warning("%s", text)
        self.traces.forget(root_id)
