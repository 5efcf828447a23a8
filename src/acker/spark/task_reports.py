"""Reports of Spark tasks that work for long, and their form as datagrams.

Spark brings nothing from a task to the driver before the task ends, which one whose call hangs never does. So a worker
sends datagrams: it never waits for the driver, and one that nobody receives costs nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from acker.observe.calls import Line, UserCall, hangs

# A datagram of this size travels whole on any network.
_BYTES_MAX: Final = 1_200
_SIGNATURE_BYTES: Final = 16
# The topic of pipelines.
PIPELINES: Final = "pipelines"


class TaskReport(NamedTuple):
    """The report of a Spark task that works for long.

    Attributes
    ----------
    topic : str
        The work that it belongs to: a micro-batch of a topology, or a pipeline.
    sender : str
        The attempt of the task, and its process.
    number : int
        Of its reports.
    stage, partition : int
        As Spark numbers them.
    host : str
    bolts : str
        The components that the task runs.
    for_ms : int
        How long it has worked.
    is_over : bool
        Whether it has ended.
    component, task : str and int, or None
        Whose code is running; None between two calls, and for a component without tasks.
    source : str or None
        The component that emitted the tuple of this call.
    root_id : int or None
        Of that tuple.
    call_ms : int
        How long the call has run, as far as it was seen.
    usual_ms : float or None
        The median of the calls of this component in this task.
    done : int
        How many tuples or rows the component has had from this task.
    timeout_ms : int or None
        That of the tuple; None for a call that may take as long as it likes, as one with a whole batch.
    stack : tuple of Line
    """

    topic: str
    sender: str
    number: int
    stage: int
    partition: int
    host: str
    bolts: str
    for_ms: int
    is_over: bool = False
    component: str | None = None
    task: int | None = None
    source: str | None = None
    root_id: int | None = None
    call_ms: int = 0
    usual_ms: float | None = None
    done: int = 0
    timeout_ms: int | None = None
    stack: tuple[Line, ...] = ()

    @property
    def hangs(self) -> bool:
        """Whether the call that runs takes much longer than usual, or most of its timeout."""
        return self.timeout_ms is not None and hangs(self.call_ms, self.usual_ms, self.timeout_ms)

    @property
    def process(self) -> str:
        """The number of the worker's process."""
        return self.sender.rpartition(".")[2]

    def later(self, ms: int) -> TaskReport:
        """Return how it is some milliseconds later, if nothing has changed."""
        call_ms = self.call_ms + ms if self.component is not None else 0
        return self._replace(for_ms=self.for_ms + ms, call_ms=call_ms)

    def call(self, message: str | None = None) -> UserCall | None:
        """Return the call of user code that runs, if there is one; `message` names that of its tuple."""
        if self.component is None:
            return None
        who = self.component if self.task is None else f"{self.component}[{self.task}]"
        tree = message if message is not None or self.root_id is None else f"root id {self.root_id}"
        what = None
        if self.source is not None:
            what = f"a tuple of {self.source}"
        elif self.task is None and self.timeout_ms is not None:
            what = f"row {self.done + 1:,} of its task"
        if tree is not None:
            what = tree if what is None else f"{what} ({tree})"
        return UserCall(who, what, self.call_ms, stack=self.stack, usual_ms=self.usual_ms)


@dataclass(frozen=True)
class ReportAddress:
    """Where the driver receives reports, and the key that signs them; it travels to the workers with their work."""

    host: str
    port: int
    token: bytes = field(repr=False)

    def seal(self, report: TaskReport) -> bytes:
        """Return a datagram; of a long stack the lines of the outermost callers are left out."""
        while True:
            content = zlib.compress(json.dumps(report, separators=(",", ":")).encode())
            if len(content) + _SIGNATURE_BYTES <= _BYTES_MAX or not report.stack:
                return self._sign(content) + content
            report = report._replace(stack=report.stack[1 + len(report.stack) // 8 :])

    def open(self, datagram: bytes) -> TaskReport | None:
        """Return the report of a datagram; None if no worker with this key has sent it."""
        signature, content = datagram[:_SIGNATURE_BYTES], datagram[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(content)):
            return None
        *fields, stack = json.loads(zlib.decompress(content))
        return TaskReport._make([*fields, tuple(Line(*line) for line in stack)])

    def _sign(self, content: bytes) -> bytes:
        return hashlib.blake2b(content, key=self.token, digest_size=_SIGNATURE_BYTES).digest()
