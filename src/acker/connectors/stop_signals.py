"""SIGTERM and SIGINT, which stop a consumer that runs a handler."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

logger: Final = logging.getLogger("acker.connectors")


class StopSignals:
    """Within its block, SIGTERM and SIGINT call a function; a second SIGINT raises `KeyboardInterrupt`.

    A second SIGTERM changes nothing: supervisors send it twice. A program that has its own handler of SIGTERM, such as
    a web server, keeps its handlers.

    Parameters
    ----------
    name : str
        The consumer's.
    stop : callable
        Called on the main thread, in the midst of anything; it takes no lock that the main thread may hold.

    Attributes
    ----------
    is_urgent : bool
        Whether there was a second SIGINT.
    """

    def __init__(self, name: str, stop: Callable[[], object]) -> None:
        self.is_urgent = False
        self._name = name
        self._stop = stop
        self._was_interrupted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            self._tell("this is not the main thread")
        elif signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            self._tell("the program has a handler of its own")
        else:
            for number in (signal.SIGTERM, signal.SIGINT):
                # Ctrl-C in a shell is not for the programs that run in its background.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _tell(self, why: str) -> None:
        logger.info("%s: SIGTERM and SIGINT do not stop this, since %s: call Consumer.stop", self._name, why)

    def _handle(self, number: int, _: FrameType | None) -> None:
        self._stop()
        if number == signal.SIGINT:
            if self._was_interrupted:
                self.is_urgent = True
                raise KeyboardInterrupt
            self._was_interrupted = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
