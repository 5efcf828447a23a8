"""Progress on the standard error: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

# How often a terminal sees the number of finished tasks move.
_POLL_SECONDS = 0.2

Tasks = Callable[[], tuple[int, int]]


class ConsoleProgress:
    """Shows phases; on a terminal with a spinner and the share of Spark's tasks that are done.

    Attributes
    ----------
    tasks : callable, optional
        Returns how many tasks of the stages that run now are done, and how many there are. Set once Spark is up.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self.tasks: Tasks | None = None

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
        self._console.file.flush()

    @contextmanager
    def phase(self, name: str, usually: str = "") -> Iterator[None]:
        """Show the name of a phase and its usual duration before it, and the real duration after it."""
        text = f"{name}, {usually}" if usually else name
        if not self._console.is_terminal:
            start = time.perf_counter()
            self.note(f"{text} ...")
            yield
            self.note(f"{name} ({time.perf_counter() - start:.1f} s)")
            return
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(text, total=None)
            finished = threading.Event()
            watcher = threading.Thread(target=self._watch, args=(bar, task, finished), daemon=True)
            watcher.start()
            try:
                yield
            finally:
                finished.set()
                watcher.join()

    def _watch(self, bar: Progress, task: TaskID, finished: threading.Event) -> None:
        while not finished.wait(_POLL_SECONDS):
            if self.tasks is None:
                continue
            try:
                done, total = self.tasks()
            except Exception:  # noqa: BLE001  Spark may be stopping; progress is decoration.
                return
            bar.update(task, completed=done, total=total or None)


def spark_tasks(context: object) -> Tasks:
    """Return a function that counts the tasks of the stages that run now."""
    tracker = context.statusTracker()  # type: ignore[attr-defined]

    def tasks() -> tuple[int, int]:
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        stages = [stage for stage in stages if stage is not None]
        return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)

    return tasks
