"""The report of a run: how it ended, with its last figures, and the headline that says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final, Literal

from acker.observe.stats import RuntimeStats, components_html, format_fields, tree_counts
from acker.observe.summary import losses, quantity

RunOutcome = Literal["drained", "reached", "elapsed", "stopped", "aborted", "failed"]

_ENDS: Final[Mapping[RunOutcome, str]] = {
    "drained": "Finished, with everything processed and nothing pending",
    "reached": "Finished, with as many trees acked as were asked for",
    "elapsed": "Finished, as the time was up",
    "stopped": "Stopped",
    "aborted": "Stopped at once, without draining",
    "failed": "Stopped with an error",
}


@dataclass(frozen=True)
class Abandoned:
    """A task that was still inside user code at the end of the time to drain; its thread was left behind.

    On Spark these are also the tasks of all bolts whose micro-batch was not done then; its job is cancelled.

    Attributes
    ----------
    component : str
    task : int
    stack : str
        The place in the code where the task was, as a traceback.
    """

    component: str
    task: int
    stack: str


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReport:
    """The report of a run.

    Attributes
    ----------
    topology : str
    outcome : {"drained", "reached", "elapsed", "stopped", "aborted", "failed"}
        drained: all spouts were finished and nothing was pending. reached: the number of acked trees of `until` was.
        elapsed: the time of `until` was up. stopped: by stop() or a signal, and drained. aborted: by a second signal or
        abort(). failed: ended with `error`.
    started_at : str
        UTC, ISO 8601.
    seconds : float
        From the start until the last task had stopped.
    stats : RuntimeStats
        The last figures.
    restarts : int
    abandoned : tuple of Abandoned
    undelivered : int
        Trees whose outcome did not reach their spout, because it was abandoned, or emitted them while it stopped.
    stalls : tuple of str
        The warnings of the watchdog.
    timed_out_traces : tuple of str
        For each traced tree that timed out: which tasks held which tuples, and for how long.
    error, last_crash : str or None
        The exception that ended the run, and the one that caused the last restart.
    restart_pending : bool
        Whether the topology was stopped while it waited for a restart after `last_crash`.
    why : str or None
        The most frequent reason of dead letters, or else of failures, if a page or an HTML report recorded them.
    """

    topology: str
    outcome: RunOutcome
    started_at: str
    seconds: float
    stats: RuntimeStats
    restarts: int = 0
    abandoned: tuple[Abandoned, ...] = ()
    undelivered: int = 0
    stalls: tuple[str, ...] = ()
    timed_out_traces: tuple[str, ...] = ()
    error: str | None = None
    last_crash: str | None = None
    restart_pending: bool = False
    why: str | None = None

    def __repr__(self) -> str:
        values = {"topology": self.topology, "outcome": self.outcome, "seconds": round(self.seconds, 3)}
        found = {name: len(getattr(self, name)) for name in ("abandoned", "stalls", "timed_out_traces")}
        counts = {
            "restarts": self.restarts,
            **tree_counts(self.stats.totals),
            "undelivered": self.undelivered,
            **found,
        }
        return format_fields(self, {**values, **counts, "error": self.error})

    @property
    def headline(self) -> dict[str, str]:
        """The headline of the page at the end: its tone ("good", "fair" or "bad"), and the sentence."""
        totals = self.stats.totals
        told = []
        if totals.shut_down:
            trees, were = quantity(totals.shut_down, "tree"), "was" if totals.shut_down == 1 else "were"
            told.append(f"{trees} {were} still open and {were} failed with reason SHUTDOWN")
        if self.undelivered:
            told.append(f"Of {quantity(self.undelivered, 'tree')} the spout could not be told the end")
        wrong = losses(dataclasses.replace(totals, shut_down=0))
        if self.abandoned:
            wrong.insert(0, f"{len(self.abandoned)} abandoned")
        if wrong:
            told.append(f"{', '.join(wrong)}{'' if self.why is None else f'; most often {self.why}'}")
        is_bad = self.outcome in ("failed", "aborted") or self.abandoned
        is_fair = told or self.restarts or self.restart_pending or self.stalls
        text = " ".join(f"{each}." for each in (self._end(is_clean=not (totals.shut_down or self.undelivered)), *told))
        return {"tone": "bad" if is_bad else "fair" if is_fair else "good", "text": text}

    def _end(self, *, is_clean: bool) -> str:
        """Return how it ended."""
        if self.outcome == "failed" and self.error is not None:
            return f"Stopped with an error: {self.error.partition(chr(10))[0].rstrip('.')}"
        told = _ENDS[self.outcome]
        if self.restart_pending:
            return f"{told} while it waited for a restart after {self.last_crash}"
        return f"{told} and drained" if self.outcome == "stopped" and is_clean else told

    def _repr_html_(self) -> str:
        """Return the headline, and a row for each component and one for the topology, for notebooks."""
        error = "" if self.error is None else f"<pre>{escape(self.error)}</pre>"
        caption = f"{self.topology}: {self.outcome}, {self.seconds:,.1f} s"
        return f"<p>{escape(self.headline['text'])}</p>{error}{components_html(self.stats, caption)}"

    def to_json(self) -> dict[str, Any]:
        """Return all fields as values for JSON."""
        return {
            "topology": self.topology,
            "outcome": self.outcome,
            "started_at": self.started_at,
            "seconds": round(self.seconds, 3),
            "restarts": self.restarts,
            "error": self.error,
            "last_crash": self.last_crash,
            "restart_pending": self.restart_pending,
            "why": self.why,
            "headline": self.headline["text"],
            "abandoned": [dataclasses.asdict(task) for task in self.abandoned],
            "undelivered": self.undelivered,
            "stalls": list(self.stalls),
            "timed_out_traces": list(self.timed_out_traces),
            "stats": self.stats.to_json(),
        }
