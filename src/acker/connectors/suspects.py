"""Messages that may have ended the processes that worked on them: each is handed out alone."""

from __future__ import annotations

import logging
import random

from acker.connectors.attempts import Attempt, AttemptTable
from acker.connectors.options import IntakeOptions
from acker.connectors.source import Delivery


class Suspects:
    """Holds messages back that were delivered very often, so that the next end of the process names its cause.

    When a process ends, the broker counts a delivery of each message that it held, though only one may be the cause.
    Used on the I/O thread alone.

    Parameters
    ----------
    name : str
        The source's.
    attempts : AttemptTable
    options : IntakeOptions
    logger : logging.Logger

    Attributes
    ----------
    is_careful : bool
        Whether one message is taken at a time, until the broker sends one that is no suspect.
    """

    def __init__(self, name: str, attempts: AttemptTable, options: IntakeOptions, logger: logging.Logger) -> None:
        self.is_careful = False
        self._name = name
        self._attempts = attempts
        self._options = options
        self._logger = logger
        self._is_told = False
        self._waiting: list[Attempt] = []
        self._alone: Attempt | None = None  # the one that was handed out last

    def __bool__(self) -> bool:
        """Return whether suspects wait, or somebody works on one."""
        return bool(self._waiting) or (self._alone is not None and self._alone.state in {"ready", "open"})

    def reopened(self) -> None:
        """Be careful: what comes first may be what ended a process, and what was with it."""
        self.is_careful = self._options.delivered_max is not None

    def add(self, delivery: Delivery, tries: int) -> None:
        """Add an attempt at a delivery to the table, which hands it out unless it is a suspect."""
        is_suspect = delivery.attempt >= self._options.suspect_from
        attempt = self._attempts.add(delivery, delivery.attempt, tries, "suspect" if is_suspect else "ready")
        if not is_suspect:
            self.is_careful = self._is_told = False
            return
        self._waiting.append(attempt)
        if not self._is_told:
            self._is_told = True
            self._logger.warning(
                "%s: this is delivery %d of %s, which may end its process. From %d deliveries on, messages are handed"
                " out alone, one at a time",
                self._name,
                delivery.attempt,
                delivery.key,
                self._options.suspect_from,
            )

    def hand_out(self) -> None:
        """If nobody works on anything, hand out one of those that were delivered least often.

        Chance decides between equal ones: so each one's turn comes before the one that ends the process, some day.
        """
        self._waiting = [attempt for attempt in self._waiting if attempt.state == "suspect"]
        if self._waiting and not self._attempts.of({"ready", "open"}):
            attempt = self._alone = min(self._waiting, key=lambda each: (each.number, random.random()))
            self._waiting.remove(attempt)
            self._attempts.hand_out(attempt)
