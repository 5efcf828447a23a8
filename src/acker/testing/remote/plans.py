"""The one job of the kit: it does what a plan says, and notes it in a folder that all processes share."""

from __future__ import annotations

import contextvars
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from acker.remote import current, detached

_LOOK_SECS: Final = 0.02
_HANG_SECS: Final = 600.0


@dataclass(frozen=True)
class JobPlan:
    """The work of one job.

    Attributes
    ----------
    folder : str
        Where it notes that it has begun, what it was refused, and that it is done.
    name : str
        In its notes. The part ``{run}`` becomes the number of the run that sends it.
    sends : sequence of JobPlan
        The jobs that it sends, before it waits and ends.
    sends_in : str
        ``"job"``: as usual; ``"thread"``: in a thread that it waits for; ``"late thread"``: in a thread that goes on
        when the job has ended, and sends when `JobNotes.open` lets it; ``"late context"``: the same, with the context
        of the job; ``"detached"``: in a block of `acker.remote.detached`; ``"vain"``: it sends what no queue can carry,
        and goes on when that raises.
    waits : bool
        Whether it waits until `JobNotes.open` lets it end.
    ends : str
        ``"returns"``, ``"raises"``, ``"exits"``, ``"is killed"`` or ``"hangs"``; ``"fails its part"``: it calls
        `acker.remote.Part.fail` itself, and returns; ``"fails its part and raises"``.
    fails : int
        So many runs end in this way, and later ones return. 0: all.
    """

    folder: str
    name: str
    sends: Sequence[JobPlan] = ()
    sends_in: str = "job"
    waits: bool = False
    ends: str = "returns"
    fails: int = 0

    @property
    def text(self) -> str:
        """The plan as text, which is the argument of the job."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the plan that a text has."""
        return cls._from_dict(json.loads(text))

    @classmethod
    def _from_dict(cls, fields: dict[str, Any]) -> Self:
        return cls(**{**fields, "sends": [cls._from_dict(each) for each in fields["sends"]]})


class JobNotes:
    """The notes of jobs of all processes in a folder, and which jobs a test lets go on.

    Parameters
    ----------
    folder : str or Path
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def add(self, kind: str, text: str) -> int:
        """Add a note; return how many of this kind and text there are now."""
        # One write in append mode: lines of several processes do not mix.
        file = os.open(self._folder / kind, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(file, f"{text}\n".encode())
        finally:
            os.close(file)
        return self.counted(kind)[text]

    def counted(self, kind: str) -> Counter[str]:
        """Return how often each note of a kind was made: ``"begun"``, ``"refused"``, ``"done"``."""
        try:
            return Counter((self._folder / kind).read_text().splitlines())
        except FileNotFoundError:
            return Counter()

    @property
    def done(self) -> Counter[str]:
        """The jobs that are done."""
        return self.counted("done")

    def open(self, name: str) -> None:
        """Let the jobs with a name go on that wait."""
        (self._folder / f"open {name}").touch()

    def open_all(self) -> None:
        """Let all jobs go on that wait, now and later."""
        (self._folder / "open").touch()

    def wait_for(self, name: str) -> None:
        """Wait until `open` was called for a name."""
        pause, paths = threading.Event(), (self._folder / f"open {name}", self._folder / "open")
        end = time.monotonic() + _HANG_SECS
        while not any(path.exists() for path in paths):
            if time.monotonic() > end:
                raise TimeoutError(f"nothing let {name} go on within {_HANG_SECS:g} s")
            pause.wait(_LOOK_SECS)


def perform(text: str, send: Callable[[Any], object]) -> None:
    """Do what a plan says: the body of the job that the author of an integration registers with the queue.

    Parameters
    ----------
    text : str
        The argument of the job.
    send : callable
        Sends the same job with another argument.

    Examples
    --------
    >>> @app.task                                 # doctest: +SKIP
    ... def work(text):
    ...     perform(text, work.delay)
    """
    plan = JobPlan.read(text)
    notes = JobNotes(plan.folder)
    run = notes.add("begun", plan.name)
    _SENDS[plan.sends_in](plan, notes, lambda: _send_all(plan, run, send), send)
    if plan.waits:
        notes.wait_for(plan.name)
    if plan.fails == 0 or run <= plan.fails:
        _end(plan.ends)
    notes.add("done", plan.name)


def _send_all(plan: JobPlan, run: int, send: Callable[[Any], object]) -> None:
    for each in plan.sends:
        name = each.name.replace("{run}", str(run))
        send(JobPlan(**{**vars(each), "name": name}).text)


def _end(how: str) -> None:
    if how.startswith("fails its part"):
        part = current()
        assert part is not None
        part.fail("no lamp")
    if how.endswith("raises"):
        raise ValueError("no lamp")
    if how == "exits":
        raise SystemExit(3)
    if how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        end = time.monotonic() + _HANG_SECS
        while time.monotonic() < end:
            time.sleep(_LOOK_SECS)  # short, as some queues can end Python code only


_Work = Callable[[], None]
_Send = Callable[[Any], object]


def _in_job(plan: JobPlan, notes: JobNotes, work: _Work, send: _Send) -> None:
    work()


def _in_thread(plan: JobPlan, notes: JobNotes, work: _Work, send: _Send) -> None:
    thread = threading.Thread(target=_noting, args=(plan, notes, work))
    thread.start()
    thread.join()


def _in_late_thread(plan: JobPlan, notes: JobNotes, work: _Work, send: _Send) -> None:
    threading.Thread(target=_late, args=(plan, notes, work)).start()


def _in_late_context(plan: JobPlan, notes: JobNotes, work: _Work, send: _Send) -> None:
    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(_late, plan, notes, work)).start()


def _detached(plan: JobPlan, notes: JobNotes, work: _Work, send: _Send) -> None:
    with detached():
        work()


def _in_vain(plan: JobPlan, notes: JobNotes, work: _Work, send: _Send) -> None:
    try:
        send(threading.Lock())  # neither JSON nor pickle has it
    except Exception as error:  # noqa: BLE001 - as careless code does
        notes.add("refused", type(error).__name__)


def _late(plan: JobPlan, notes: JobNotes, work: _Work) -> None:
    notes.wait_for(f"late {plan.name}")
    _noting(plan, notes, work)


def _noting(plan: JobPlan, notes: JobNotes, work: _Work) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the scenario looks which one
        notes.add("refused", type(error).__name__)


_SENDS: Final[dict[str, Callable[[JobPlan, JobNotes, _Work, _Send], None]]] = {
    "job": _in_job,
    "thread": _in_thread,
    "late thread": _in_late_thread,
    "late context": _in_late_context,
    "detached": _detached,
    "vain": _in_vain,
}
