"""Completions of a tracked pipeline: finished trees, with why those failed that did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from acker._engine.completions import Completions

if TYPE_CHECKING:
    import numpy.typing as npt

    Objects = npt.NDArray[np.object_]


class PipelineCompletions(Completions):
    """Finished trees of a tracked pipeline; `for_each_completion` gives them to its function.

    Attributes
    ----------
    message_id : (m,) int64 or object
        Objects where ids are strings or bytes.
    component : (m,) object
        The bolt that failed the tree; None where none did.
    reason : (m,) object
        The type and text of the exception that the bolt raised.
    """

    __slots__ = ("component", "reason")

    def __init__(self, *columns: Any, component: Objects, reason: Objects) -> None:
        super().__init__(*columns)
        self.component = component
        self.reason = reason

    @classmethod
    def of(
        cls, done: Completions, message_id: npt.NDArray[Any], component: Objects, reason: Objects
    ) -> PipelineCompletions:
        """Return completions with their message ids and reasons."""
        columns = (done.root_id, message_id, done.task_id, done.outcome, done.elapsed_ms)
        return cls(*columns, component=component, reason=reason)

    def at(self, places: npt.NDArray[Any]) -> PipelineCompletions:
        """Return the rows at these places, or those where a mask is true."""
        plain = super().at(places)
        return PipelineCompletions(*plain.columns(), component=self.component[places], reason=self.reason[places])
