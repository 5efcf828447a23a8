"""The figures of a consumer at one moment."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from acker._engine.notebook import html_table
from acker._engine.protocol import Stats
from acker.observe.durations import format_ns
from acker.observe.latencies import Histogram

if TYPE_CHECKING:
    from acker.observe.stats import RuntimeState, TaskStats

_SHOWN: Final = ("delivered", "acked", "failed", "timed_out", "retried", "dead_letters", "revoked", "pending")
# Exporters know the counts that topologies have by their names, and these as counters of a component.
_OWN: Final = (
    "delivered",
    "redelivered",
    "retried",
    "revoked",
    "released",
    "unacked",
    "reconnects",
    "lost_handles",
    "undecodable",
    "repeated_jobs",
)
_SPOUT_TASK: Final = 1
_ACKER_TASK: Final = 2


class ConsumerHealth(NamedTuple):
    """Whether a consumer can do its work.

    Attributes
    ----------
    ok : bool
        Whether it is started, has not ended, and its I/O thread takes turns. A lost connection, which is opened again,
        is no reason to start the process again.
    state : {"new", "running", "draining", "stopped"}
    text : str
        One sentence, without secrets.
    """

    ok: bool
    state: RuntimeState
    text: str


@dataclass(frozen=True, kw_only=True)
class ConsumerStats:
    """A consumer at one moment; all counts are since its start.

    Attributes
    ----------
    name, source : str
    state : {"new", "running", "draining", "stopped"}
    uptime_secs : float
    delivered : int
        Messages that came from the broker, for the first time or again.
    redelivered : int
        Of these, how many the broker says it had delivered before.
    acked, failed, timed_out : int
        Attempts that ended so.
    retried : int
        Further attempts.
    dead_letters : int
        Messages that were given up.
    revoked : int
        Messages that the broker took back, and acks that came too late.
    released : int
        Messages that were given back at the end.
    unacked : int
        Messages that were done at the end, and whose acks the broker did not take in time: it delivers them again.
    late : int
        Outcomes of attempts that had ended before.
    lost_handles : int
        Messages that failed because a handle was freed without an end.
    undecodable : int
        Messages that `decode` refused.
    repeated_jobs : int
        Jobs in other processes that were open when their messages went back, or the broker took these: they run again.
    reconnects, polls : int
        How often the connection was lost, and the source was asked for messages.
    pending : int
        Messages that are in this process now.
    oldest_age_ms : int or None
        How long ago the oldest open one was handed out.
    calls_running, calls_over : int
        Calls that `submit` runs in threads and `spawn` as coroutines now; those of them whose message is over, since it
        timed out, failed, or was taken back.
    complete_latency : Histogram
        From the hand-out of messages to the end of all their work, of those that were acked.
    acker : Stats
        The counts of the acker.
    """

    name: str
    source: str
    state: RuntimeState
    uptime_secs: float
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    retried: int = 0
    dead_letters: int = 0
    revoked: int = 0
    released: int = 0
    unacked: int = 0
    late: int = 0
    lost_handles: int = 0
    undecodable: int = 0
    repeated_jobs: int = 0
    reconnects: int = 0
    polls: int = 0
    pending: int = 0
    oldest_age_ms: int | None = None
    calls_running: int = 0
    calls_over: int = 0
    complete_latency: Histogram
    acker: Stats

    def to_json(self) -> dict[str, Any]:
        """Return all fields as values for JSON."""
        fields = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return fields | {
            "uptime_secs": round(self.uptime_secs, 3),
            "complete_latency": self.complete_latency.to_json(),
            "acker": dataclasses.asdict(self.acker),
        }

    def _repr_html_(self) -> str:
        told = [format_ns(self.complete_latency.quantile(share)) for share in (0.5, 0.99)]
        head = [*(name.replace("_", " ") for name in _SHOWN), "p50", "p99"]
        row = [*(getattr(self, name) for name in _SHOWN), *told]
        return html_table(f"{self.name}: {self.state}, {self.uptime_secs:,.1f} s", head, [row])

    # ---- as exporters read the figures of topologies ----------------------------------------------------------------

    @property
    def topology(self) -> str:
        """For exporters: `name`."""
        return self.name

    @property
    def restarts(self) -> int:
        """For exporters: 0."""
        return 0

    @property
    def tasks(self) -> tuple[TaskStats, ...]:
        """For exporters: the source as a spout task, and the acker."""
        from acker.observe.stats import TaskStats

        executor = f"acker {self.source}"
        spout = TaskStats(
            component=self.source,
            kind="spout",
            task=_SPOUT_TASK,
            executor=executor,
            executed=self.polls,
            acked=self.acked,
            failed=self.failed,
            timed_out=self.timed_out,
            late=self.late,
            dead_letters=self.dead_letters,
            pending=self.pending,
            oldest_age_ms=self.oldest_age_ms,
            calls_running=self.calls_running,
            calls_over=self.calls_over,
            complete_latency=self.complete_latency,
            user={name: getattr(self, name) for name in _OWN},
        )
        return spout, TaskStats(component="acker", kind="acker", task=_ACKER_TASK, executor=executor, acker=self.acker)
