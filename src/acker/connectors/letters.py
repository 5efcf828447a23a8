"""Dead letters where a publisher has put them: listed, published again to where they came from, or dropped."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self

from acker.connectors import headers
from acker.connectors.dead_letters import key_of_text
from acker.connectors.options import check_secs, check_whole
from acker.connectors.publisher import Outgoing, Publisher
from acker.connectors.source import Delivery, Origin, Silence, Source
from acker.connectors.stored_messages import StoredMessages
from acker.errors import ArgumentTypeError, ArgumentValueError, ConnectionLostError, PublishError, SourceError

logger: Final = logging.getLogger("acker.connectors")

_BATCH: Final = 500
# For how long a broker may let its first letter be awaited: Kafka waits for the session of a reader that was killed.
_RECEIVING_SECS: Final = 60.0
# RabbitMQ drops a message of a quorum queue that came back 20 times, and SQS moves it by its redrive policy.
_DELIVERIES_MANY: Final = 10


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes
    ----------
    letter_id : str
        Twelve digits, made of its content: the same each time it is read. Copies of one letter share it.
    value : bytes
        The body of the message.
    headers : mapping of str to Any
        Those of the message; without those that acker or a broker added.
    reason, key, source : str
        Why the last attempt failed, the name of the message, and that of its source; empty if nobody said so.
    attempts : int or None
    time : datetime or None
        When it was written.
    to : str or None
    to_key : bytes or None
    properties : mapping of str to Any
        Where it came from, and what the broker knew of it there: see `Origin`.
    """

    letter_id: str
    value: bytes
    headers: Mapping[str, Any]
    reason: str
    key: str
    source: str
    attempts: int | None
    time: datetime | None
    to: str | None
    to_key: bytes | None
    properties: Mapping[str, Any]

    @classmethod
    def of(cls, delivery: Delivery, lies_at: Origin) -> Self:
        """Return the letter that was read from where it lies. One that the broker has moved there is as it came."""
        own = {name: headers.header_text(value) for name, value in delivery.headers.items()}
        told = {name: own[name] for name in sorted(headers.LETTER_HEADERS & own.keys())}
        to_key = told.get(headers.TO_KEY)
        return cls(
            hashlib.blake2b(repr((delivery.value, told)).encode(), digest_size=6).hexdigest(),
            delivery.value,
            {name: value for name, value in delivery.headers.items() if headers.is_own_header(name)},
            told.get(headers.REASON, ""),
            told.get(headers.KEY, ""),
            told.get(headers.SOURCE, ""),
            _count_of(told.get(headers.ATTEMPTS, "")),
            _time_of(told.get(headers.TIME, "")),
            told.get(headers.TO),
            None if to_key is None else key_of_text(to_key),
            _properties_of(told.get(headers.PROPERTIES, "{}")) if told else lies_at.properties or {},
        )

    def age_secs(self, now: datetime | None = None) -> float | None:
        """Return how long ago it was written, if it says when."""
        return None if self.time is None else ((now or datetime.now(UTC)) - self.time).total_seconds()


def _count_of(text: str) -> int | None:
    try:
        return int(text) if text.isdecimal() else None
    except ValueError:  # thousands of digits, of a stranger's message in a dead-letter exchange
        return None


def _properties_of(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _time_of(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@dataclass(slots=True)
class LettersReport:
    """What `DeadLetters` has done.

    Attributes
    ----------
    letters : list of Letter
        Those that were found; or published again, confirmed, and removed; or dropped.
    refused : list of (Letter, Exception)
        Those that stay where they are, and why.
    others : int
        Letters of other sources, which were left alone.
    is_all : bool
        Whether all letters were looked at. False: there may be more than `most`.
    """

    letters: list[Letter] = field(default_factory=list)
    refused: list[tuple[Letter, Exception]] = field(default_factory=list)
    others: int = 0
    is_all: bool = True


Where = Callable[[Letter], bool]
_Found = list[tuple[Delivery, Letter]]


class DeadLetters:
    """The dead letters at one place; `Consumer.letters` returns those of a consumer.

    Nothing here is lost: a letter is removed only after the copy of it is confirmed. After a crash in between it is
    there twice, at least once each.

    Parameters
    ----------
    place : Publisher
        Where the letters lie, such as ``DeadLetterFile(path)`` or a `RabbitMQPublisher`.
    source : Source, optional
        Letters of other sources are left alone, and `retry` publishes to where this one reads. Those that name no
        source count as its own. It is not opened: a consumer may use it.
    most : int
        The most letters to look at in one call. Brokers that only deliver hold them back from others meanwhile.
    lease_secs : float
        For how long a broker with leases (SQS) holds letters back when this process is killed.

    Examples
    --------
    >>> letters = DeadLetters(DeadLetterFile("letters.jsonl"), source=source)        # doctest: +SKIP
    >>> report = letters.retry(lambda letter: "TimeoutError" in letter.reason)   # doctest: +SKIP
    """

    def __init__(
        self, place: Publisher, *, source: Source | None = None, most: int = 10_000, lease_secs: float = 60.0
    ) -> None:
        if not isinstance(place, Publisher):
            raise ArgumentTypeError(
                f"place: expected a Publisher, such as DeadLetterFile(path), got a {type(place).__name__}"
            )
        if source is not None and not isinstance(source, Source):
            raise ArgumentTypeError(f"source: expected a Source, got a {type(source).__name__}")
        check_whole("most", most)
        check_secs("lease_secs", lease_secs, above_zero=True)
        self._place, self._source, self._most, self._lease_secs = place, source, most, lease_secs

    @property
    def has_source(self) -> bool:
        """Whether `retry` knows where letters go without `to`."""
        return self._source is not None

    def find(self, where: Where | None = None) -> LettersReport:
        """Return letters, which stay where they are.

        Parameters
        ----------
        where : callable, optional
            Takes a letter, and returns whether it is meant. By default all are.

        Raises
        ------
        SourceError, ConnectionLostError
            The place cannot be read.
        """
        return self._each(where, lambda _, found: [letter for _, letter in found])

    def drop(self, where: Where | None = None) -> LettersReport:
        """Remove letters; see `find`."""

        def drop(visit: _Visit, found: _Found) -> list[Letter]:
            return visit.remove(found)

        return self._each(where, drop)

    def retry(self, where: Where | None = None, *, to: Publisher | None = None) -> LettersReport:
        """Publish letters again, and remove each when the broker has confirmed it; see `find`.

        Body, key, headers and properties are those of the message as it came. Headers that acker and brokers added are
        left out, and of RabbitMQ's properties those that could lose it: ``expiration``, ``delivery_mode``, ``user_id``.

        Parameters
        ----------
        where : callable, optional
        to : Publisher, optional
            Where all go. By default each goes where it came from: where `source` reads.

        Raises
        ------
        ArgumentValueError
            There is neither `to` nor a source, or the source knows no publisher.
        SourceError, ConnectionLostError
            The place cannot be read; or no letter can be dropped there, and nothing was published; or what was
            published cannot be dropped all the same, and the text says how many.
        """
        is_origin = to is None
        target = self._own_target() if to is None else to

        def retry(visit: _Visit, found: _Found) -> list[Letter]:
            visit.check_removal()
            held = visit.held(found)
            copies = [
                Outgoing(
                    letter.value, letter.to_key, letter.headers, letter.to if is_origin else None, letter.properties
                )
                for _, letter in held
            ]
            errors = target.publish(copies)
            visit.refused += [
                (letter, error) for (_, letter), error in zip(held, errors, strict=True) if error is not None
            ]
            confirmed = [each for each, error in zip(held, errors, strict=True) if error is None]
            try:
                return visit.remove(confirmed)
            except (ConnectionLostError, SourceError) as error:
                text = (
                    f"{len(confirmed)} letters were published again and not dropped, so they are there twice: {error}"
                )
                raise type(error)(text) from error

        with target:
            return self._each(where, retry)

    def _own_target(self) -> Publisher:
        if self._source is None:
            raise ArgumentValueError("retry: nobody said where to: give source= to DeadLetters, or to=, a publisher")
        target = self._source.publisher()
        assert isinstance(target, Publisher)
        return target

    def _each(self, where: Where | None, act: Callable[[_Visit, _Found], list[Letter]]) -> LettersReport:
        """Do something with the letters that are meant, some hundred at a time."""
        report = LettersReport()
        source = self._place.reader(lease_secs=self._lease_secs)
        visit = _Visit(source, self._most, report.refused)
        source.open(visit, self._most)
        try:
            for deliveries in visit.batches():
                found = []
                for delivery in deliveries:
                    letter = Letter.of(delivery, source.origin(delivery))
                    if self._source is not None and letter.source not in ("", self._source.name):
                        report.others += 1
                    elif where is None or where(letter):
                        found.append((delivery, letter))
                if found:
                    report.letters += act(visit, found)
            report.is_all = not visit.is_cut_off
        finally:
            visit.end()
        return report


class _Visit:
    """One connection to the place of letters, on which each letter comes once. It is a `SourceEvents`.

    Attributes
    ----------
    refused : list of (Letter, Exception)
    is_cut_off : bool
        Whether it ended before the letters did.
    """

    def __init__(self, source: Source, most: int, refused: list[tuple[Letter, Exception]]) -> None:
        self.refused = refused
        self.is_cut_off = False
        self._source, self._most = source, most
        self._held: list[Delivery] = []
        self._is_warned = self._is_checked = False

    def finish(self, concerned: Callable[[Delivery], bool], secs: float) -> None:
        """Do nothing: between two calls of the source no work goes on."""

    def revoked(self, concerned: Callable[[Delivery], bool]) -> None:
        """Forget deliveries."""
        self._held = [delivery for delivery in self._held if not concerned(delivery)]

    def batches(self) -> Iterator[Sequence[Delivery]]:
        """Yield letters until there are no more."""
        source, count = self._source, 0
        lease_secs = source.lease_secs
        renewed = begun = time.monotonic()
        silence = Silence()
        while count < self._most:
            found = source.poll(min(_BATCH, self._most - count), min(source.wait_secs_max, silence.left_secs))
            if found:
                count += len(found)
                self._hold(found)
                yield found
                silence.begin()
            elif isinstance(source, StoredMessages):
                return
            elif not source.is_receiving:
                silence.begin()
                if time.monotonic() - begun > _RECEIVING_SECS:
                    raise ConnectionLostError(f"{source.name}: the broker sends nothing yet; try again later")
            elif silence.has_lasted():
                return
            if lease_secs is not None and time.monotonic() - renewed > lease_secs / 3:
                renewed = time.monotonic()
                source.extend([delivery for delivery in self._held if source.holds(delivery)])
        self.is_cut_off = True

    def _hold(self, deliveries: Sequence[Delivery]) -> None:
        if isinstance(self._source, StoredMessages):
            return
        self._held += deliveries
        most = max(delivery.attempt for delivery in deliveries)
        if most > _DELIVERIES_MANY and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "%s: a letter was delivered %d times, and each look at it counts: a limit of deliveries at the broker"
                " (x-delivery-limit, a redrive policy) would take it away; raise that limit",
                self._source.name,
                most,
            )

    def check_removal(self) -> None:
        """Raise if the place lets nobody remove letters: before one is published that would be there twice then."""
        if self._is_checked or not isinstance(self._source, StoredMessages):
            return
        try:
            self._source.check_removal()
        except SourceError as error:
            raise SourceError(f"nothing was published, since no letter can be dropped: {error}") from error
        self._is_checked = True

    def held(self, found: _Found) -> _Found:
        """Return the letters that can still be removed, and note the others as refused."""
        mine = []
        for delivery, letter in found:
            if self._source.holds(delivery):
                mine.append((delivery, letter))
            else:
                why = PublishError(f"{self._source.name} has taken {letter.letter_id} back meanwhile: it comes again")
                self.refused.append((letter, why))
        return mine

    def remove(self, found: _Found) -> list[Letter]:
        """Remove letters; return those that are gone, and note the others as refused."""
        mine = self.held(found)
        self._source.ack([delivery for delivery, _ in mine])
        self._source.poll(0, 0.0)  # so that no ack waits
        gone = {id(delivery) for delivery, _ in mine}
        self._held = [delivery for delivery in self._held if id(delivery) not in gone]
        return [letter for _, letter in mine]

    def end(self) -> None:
        """Give back what is held, and disconnect."""
        try:
            if self._held:
                self._source.release([delivery for delivery in self._held if self._source.holds(delivery)])
        except ConnectionLostError as error:
            text = "%s: letters that were looked at come back when their leases end: %s"
            logger.warning(text, self._source.name, error)
        finally:
            self._source.close()
