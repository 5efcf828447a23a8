"""Messages that may have ended the processes that worked on them: each is handed out alone."""

from __future__ import annotations

import logging
import random

from acker.connectors.attempts import Attempt
from acker.connectors.options import MessageOptions
from acker.connectors.source import Delivery


class Suspects:
    """Holds messages back that were delivered very often, so that the next end of the process names its cause.

    When a process ends, the broker counts a delivery of each message that it held, though only one may be the cause.
    Used on the I/O thread alone.

    Parameters
    ----------
    name : str
        The source's.
    options : MessageOptions
    logger : logging.Logger

    Attributes
    ----------
    is_careful : bool
        Whether one message is taken at a time, until the broker sends one that is no suspect.
    is_alert : bool
        Whether first deliveries, too, have to be shown to `suspect`.
    """

    def __init__(self, name: str, options: MessageOptions, logger: logging.Logger) -> None:
        self.is_careful = self.is_alert = False
        self._suspect_from = options.suspect_from
        self._name = name
        self._options = options
        self._logger = logger
        self._is_told = False
        self._held: list[Attempt] = []
        self._alone: Attempt | None = None  # the one that was handed out last

    def __bool__(self) -> bool:
        """Return whether suspects wait, or somebody works on one."""
        return bool(self._held) or (self._alone is not None and self._alone.state in {"ready", "queued", "open"})

    def connected(self) -> None:
        """Be careful: what comes first may be what ended a process, and what was with it."""
        self.is_careful = self.is_alert = self._options.delivered_max is not None

    def suspect(self, delivery: Delivery) -> bool:
        """Return whether a delivery is a suspect, and say so if it is the first one."""
        if delivery.attempt < self._suspect_from:
            self.is_careful = self.is_alert = self._is_told = False
            return False
        self.is_careful = True  # the next one may be one, too
        if not self._is_told:
            self._is_told = self.is_alert = True
            self._logger.warning(
                "%s: this is delivery %d of %s, which may end its process. From %d deliveries on, messages are handed"
                " out alone, one at a time",
                self._name,
                delivery.attempt,
                delivery.key,
                self._suspect_from,
            )
        return True

    def hold(self, attempt: Attempt) -> None:
        """Keep an attempt at a suspect until `pick` returns it."""
        attempt.state = "suspect"
        self._held.append(attempt)

    def are_held(self) -> bool:
        """Return whether suspects wait that have not ended meanwhile."""
        self._held = [attempt for attempt in self._held if attempt.state == "suspect"]
        return bool(self._held)

    def pick(self) -> Attempt:
        """Return one of those that wait and were delivered least often, which is handed out now.

        Chance decides between equal ones: so each one's turn comes before the one that ends the process, some day.
        """
        attempt = self._alone = min(self._held, key=lambda each: (each.number, random.random()))
        self._held.remove(attempt)
        return attempt
