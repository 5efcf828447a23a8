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
    component : (m,) object
        The bolt that failed the tree; None where none did.
    reason : (m,) object
        What the bolt raised: the exception's type and text.
    """

    __slots__ = ("component", "reason")

    def __init__(self, *columns: Any, component: Objects, reason: Objects) -> None:
        super().__init__(*columns)
        self.component = component
        self.reason = reason

    def at(self, places: npt.NDArray[Any]) -> PipelineCompletions:
        """Return the rows at these places, or those where a mask is true."""
        plain = super().at(places)
        return PipelineCompletions(*plain.columns(), component=self.component[places], reason=self.reason[places])
