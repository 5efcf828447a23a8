"""A run of the word count on the screen: its progress, and the notes of the workers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import acker.local


class Screen:
    """Shows a run while it goes on: a bar on a terminal, a line every few seconds elsewhere; and the notes of a drill.

    Parameters
    ----------
    lines : int
        Number of lines that the run has to ack.
    notes : Path
    """

    LOOK_SECS, LINE_SECS, BAR_WIDTH = 0.25, 5.0, 60

    def __init__(self, lines: int, notes: Path) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, markup=False, soft_wrap=True)
        self._has_bar = sys.stdout.isatty() and not self.console.is_dumb_terminal
        self._lines, self._notes, self._shown = lines, notes, 0
        self._over = threading.Event()

    def say(self, text: str = "", style: str | None = None) -> None:
        """Print a line, above the bar if there is one."""
        self.console.print(text, style=style)
        sys.stdout.flush()

    @contextmanager
    def watch(self, runtime: acker.local.LocalRuntime, job: Callable[[], str]) -> Iterator[None]:
        """Show the progress of a runtime, and of the job of Spark that runs until it has acked something."""
        with ExitStack() as ends:
            arguments = runtime, job, self._bar(ends)
            watcher = threading.Thread(target=self._work, args=arguments, name="screen", daemon=True)
            watcher.start()
            ends.callback(watcher.join)
            ends.callback(self._over.set)
            yield

    def _bar(self, ends: ExitStack) -> Callable[[float, str], None]:
        """Return the function that shows a share and a line of figures."""
        if not self._has_bar:
            return lambda _, line: self.say(line)
        from rich.console import Group
        from rich.live import Live
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        live = ends.enter_context(Live(console=self.console, auto_refresh=False, transient=True))

        def show(share: float, line: str) -> None:
            bar = ProgressBar(total=1.0, completed=share, width=min(self.BAR_WIDTH, self.console.width))
            below = Text(line, no_wrap=True, overflow="ellipsis")
            live.update(Group(Padding(bar, 0), below), refresh=True)  # A bar alone does not end its line.

        return show

    def _work(
        self, runtime: acker.local.LocalRuntime, job: Callable[[], str], show: Callable[[float, str], None]
    ) -> None:
        due = 0.0
        while not self._over.wait(self.LOOK_SECS):
            self._show_notes()
            if time.monotonic() >= due:
                due = time.monotonic() + (0.0 if self._has_bar else self.LINE_SECS)
                show(*self._figures(runtime, job))
        self._show_notes()

    def _figures(self, runtime: acker.local.LocalRuntime, job: Callable[[], str]) -> tuple[float, str]:
        stats = runtime.stats()
        totals, secs = stats.totals, stats.uptime_secs or 1.0
        share = min(1.0, totals.acked / max(1, self._lines))
        counts = {"lines": totals.acked, "tuples": totals.transferred, "failures": totals.failed + totals.timed_out}
        rates = ", ".join(f"{count / secs:,.0f} {name}" for name, count in counts.items())
        now = "" if totals.acked else job()
        return share, f"{share:4.0%}  {totals.acked:,} of {self._lines:,} lines; {now or f'a second {rates}'}"

    def _show_notes(self) -> None:
        notes = self._notes.read_text().splitlines() if self._notes.exists() else []
        for note in notes[self._shown :]:
            self.say(note, "yellow")
        self._shown = len(notes)
