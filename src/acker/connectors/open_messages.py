"""The messages that are open in a consumer, for a look when something hangs."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, NamedTuple

from acker.connectors.attempts import Attempt
from acker.connectors.handles import MessageTree
from acker.observe.durations import format_duration
from acker.observe.failures import shortened

if TYPE_CHECKING:
    from acker.remote.ledger import OpenJob

_JOBS_MAX: Final = 10


class OpenMessage(NamedTuple):
    """One message that is open.

    Attributes
    ----------
    key : str
    age_secs : float
        Since it was handed out.
    attempt : int
    parts : int
        Number of handles that have not ended: the message itself, and its children.
    made_in : tuple of str
        Where the handles were made that have not ended; empty unless the consumer traces.
    jobs : tuple of OpenJob
        The jobs in other processes that it waits for, at most ten.
    order_key : Hashable
        Its key, where a consumer hands out the messages of one in order.
    behind : int
        How many messages of this key wait for it.
    """

    key: str
    age_secs: float
    attempt: int
    parts: int
    made_in: tuple[str, ...]
    jobs: tuple[OpenJob, ...] = ()
    order_key: Hashable = None
    behind: int = 0

    @property
    def behind_text(self) -> str:
        """One sentence on what waits behind it; empty if nothing does."""
        return f"{self.behind} messages wait for key {shortened(repr(self.order_key), 60)}" if self.behind else ""


class OpenMessages(list[OpenMessage]):
    """A list of open messages that notebooks show as a table."""

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(
            f"<th>{name}</th>" for name in ("message", "age", "attempt", "open parts", "made in", "jobs", "behind")
        )
        rows = "".join(
            f"<tr><td>{escape(each.key)}</td><td>{format_duration(1000 * each.age_secs)}</td><td>{each.attempt}</td>"
            f"<td>{each.parts}</td><td>{'<br>'.join(map(escape, each.made_in))}</td>"
            f"<td>{'<br>'.join(escape(str(job)) for job in each.jobs)}</td><td>{escape(each.behind_text)}</td></tr>"
            for each in self
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"

    def text(self) -> str:
        """Return one line that names them."""
        return ", ".join(
            f"{each.key} for {format_duration(1000 * each.age_secs)} with {each.parts} open parts"
            + "".join(f" ({job})" for job in each.jobs[:1])
            + (f" ({each.behind_text})" if each.behind else "")
            for each in self
        )


def describe_open(attempts: list[Attempt]) -> OpenMessages:
    """Return what is known of attempts that were handed out."""
    now_ns = time.monotonic_ns()
    found = OpenMessages()
    for attempt in attempts:
        tree: MessageTree | None = attempt.tree
        parts, made_in = (0, ()) if tree is None else (tree.parts, tuple((tree.handles or {}).copy().values()))
        jobs = () if tree is None else tuple(tree.open_jobs(_JOBS_MAX))
        age_secs = (now_ns - attempt.since_ns) / 1e9
        lane = attempt.lane
        key, behind = (None, 0) if lane is None else (lane.key, len(lane.waiting))
        found.append(OpenMessage(attempt.delivery.key, age_secs, attempt.number, parts, made_in, jobs, key, behind))
    return found
