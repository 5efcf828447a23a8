"""Reasons for the failure of a tuple."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ReasonKind(enum.Enum):
    """The kind of event that ended a tree without an ack."""

    FAILED = "failed"
    TIMED_OUT = "timed out"
    REJECTED = "rejected"
    RESTART = "restart"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for which a tuple failed.

    Attributes
    ----------
    kind : ReasonKind
        FAILED: a bolt failed it. TIMED_OUT: it took longer than topology.message.timeout.secs. REJECTED: the acker held
        as many trees as topology.acker.high_water allows. RESTART, SHUTDOWN: it was open when the topology restarted or
        stopped.
    component : str, optional
        The component that failed it, if one did.
    task : int, optional
        The task of that component.
    exception : str, optional
        The reason or exception that this component gave.
    attempt : int
        Number of this emission of the tuple, from 1.
    """

    kind: ReasonKind
    component: str | None = None
    task: int | None = None
    exception: str | None = None
    attempt: int = 1

    def __str__(self) -> str:
        text = self.kind.value
        if self.component is not None:
            text += f" in {self.component}" if self.task is None else f" in {self.component}[{self.task}]"
        if self.exception:
            text += ": " + " ".join(self.exception.split())
        return f"{text} (attempt {self.attempt})"
