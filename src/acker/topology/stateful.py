"""StatefulBolt, a bolt whose state a runtime keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acker.errors import TopologyError
from acker.topology.bolt import Bolt
from acker.topology.component import TaskAttribute
from acker.topology.state import KeyValueState

__all__ = ["StatefulBolt"]


class StatefulBolt(Bolt):
    """A bolt whose state a runtime keeps: each task has the mapping `self.state`. Storm's BaseStatefulBolt.

    The state is there from `initialize` on, with what the task has kept: before a restart of the topology, in an
    earlier run, in the micro-batches before. What the bolt keeps in other attributes is lost then.

    A tuple that fails leaves the state as `process` has left it, in a runtime that does not commit: nothing is undone.
    Change the state after all that may raise. docs/topologies.md, *State*, says what each runtime promises.

    Attributes
    ----------
    state : KeyValueState
        The state of this task. Only the methods of the bolt that the runtime calls use it, no threads of your own.
    """

    if TYPE_CHECKING:
        state: KeyValueState
    else:
        state = TaskAttribute(
            mend="read the state in initialize(self, conf, context), or fill it in init_state(self, state)"
        )

    def _bind_state(self, state: KeyValueState) -> None:
        """Attach the state of the task; called by runtimes after `_bind`, before `initialize`."""
        super().__setattr__("state", state)

    # Not a property, which would make each read of the state slower.
    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse another state than the runtime's, which alone is kept."""
        if name == "state" and "_collector" in vars(self) and value is not self.state:
            raise TopologyError(
                f"{self.component_name}: self.state = ... would lose the state that the runtime keeps; change"
                " self.state in place: self.state.clear(), self.state.update(...)"
            )
        super().__setattr__(name, value)

    def init_state(self, state: KeyValueState) -> None:
        """Prepare with what the state holds; called once, after `initialize` and before the first tuple.

        Parameters
        ----------
        state : KeyValueState
            The same as `self.state`. It is empty in the first run.
        """
