"""Figures in a cell of a notebook that change while a topology or a consumer runs."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from acker.errors import RuntimeStateError
from acker.observe.metric_names import HasStats

logger = logging.getLogger("acker.local")


def watch(runtime: HasStats, interval_secs: float = 1.0) -> None:
    """Show the figures of a runtime or a consumer in the cell of a notebook, until it has stopped.

    The cell ends at once; a thread updates what it shows.

    Parameters
    ----------
    runtime : LocalRuntime, Consumer or another that has `stats`
    interval_secs : float
        The time between two updates.

    Raises
    ------
    RuntimeStateError
        This is no cell of a notebook.
    """
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ModuleNotFoundError:
        shell = None
    else:
        shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        raise RuntimeStateError(
            "watch: this is no cell of a notebook; elsewhere print stats(), or ask for a page by ui="
        )
    handle: Any = display(runtime.stats(), display_id=True)  # type: ignore[no-untyped-call]
    threading.Thread(target=_update, args=(runtime, handle, interval_secs), name="acker.watch", daemon=True).start()


def _update(runtime: HasStats, handle: Any, interval_secs: float) -> None:
    try:
        while True:
            time.sleep(interval_secs)
            stats: Any = runtime.stats()
            handle.update(stats)
            if stats.state == "stopped":
                return
    except Exception:
        logger.exception("watch: the cell is no longer updated; what it shows runs on")
