"""The recorder: takes readings without a server, for a page that is frozen at the end."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from acker.ui.history import History, pause_secs
from acker.ui.source import LiveSource

# A chart needs at least this number of readings to draw a line.
_READINGS_MIN: Final = 3

logger = logging.getLogger("acker.ui")


class Recorder:
    """Reads a source again and again on a thread, from its start until `close`.

    Parameters
    ----------
    source : LiveSource
    interval_secs : float

    Attributes
    ----------
    latest : dict
        The last reading; empty if none succeeded.
    """

    def __init__(self, source: LiveSource, interval_secs: float) -> None:
        self.latest: dict[str, Any] = {}
        self._source = source
        self._interval_secs = interval_secs
        self._history = History()
        self._in_trouble = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"{source.name}.recorder", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._closing.wait(pause_secs(self._read(), self._interval_secs)):
            pass
        self._read()

    def _read(self) -> float:
        """Take a reading; return how many seconds of a core it took."""
        begin = time.thread_time()
        try:
            view = self._source.view() | {"at_ms": time.time_ns() // 1_000_000}
            self._history.add(view)
            self.latest = view
            self._in_trouble = False
        except Exception:
            if not self._in_trouble:
                logger.exception("%s: the report cannot read figures for its charts; it tries again", self._source.name)
            self._in_trouble = True
        return time.thread_time() - begin

    def close(self) -> None:
        """Take the last reading, and stop. May be called again."""
        self._closing.set()
        self._thread.join()

    def history(self) -> dict[str, Any] | None:
        """Return the charts, once it is closed; None if there were too few readings to draw a line."""
        return self._history.to_json() if len(self._history) >= _READINGS_MIN else None
