"""Helpers for the Kafka source and publisher: topics and errors checked, logs of the client, and no secrets in them."""

from __future__ import annotations

import functools
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from acker.errors import AckerError, ArgumentTypeError, ArgumentValueError, ConnectionLostError, SourceError
from acker.observe.secret_texts import Secrets

LOGGER: Final = logging.getLogger("acker.connectors")

# Values that no text may show. A broker's certificate is no secret, but a PEM holds the key as well.
_SECRET_NAMES: Final = re.compile(r"password|secret|token|pem|oauthbearer\.config")
# Those of the configuration that only listen.
_CALLBACKS: Final = ("stats_cb", "throttle_cb")
# Lines of the client's log that its errors repeat; it writes them twenty times a second while a broker is down.
_REPEATED: Final = ("FAIL", "ERROR")
# A new topic is not known to each broker at once.
_UNKNOWN_TOPIC_SECS: Final = 1.0
# Refusals that a later attempt would meet again.
MISTAKES: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError._INVALID_ARG,
        KafkaError._SSL,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INCONSISTENT_GROUP_PROTOCOL,
        KafkaError.INVALID_GROUP_ID,
        KafkaError.INVALID_SESSION_TIMEOUT,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.UNSUPPORTED_VERSION,
    )
)
_UNKNOWN_TOPIC: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
# Properties of one kind of client, which the other one refuses or warns of.
_OF_CONSUMERS: Final = re.compile(
    r"(group|session\.timeout|heartbeat|max\.poll|partition\.assignment|auto\.(offset|commit)|enable\.(auto|partition)"
    r"|isolation|fetch|queued|check\.crcs|coordinator|offset\.store|consume)\b.*|on_commit"
)
_OF_PRODUCERS: Final = re.compile(
    r"(acks|request\.(required|timeout)|enable\.(idempotence|gapless)|transaction|linger|batch|compression"
    r"|message\.(timeout|send)|delivery\.(timeout|report)|retries|queue\.buffering|queuing|produce|partitioner"
    r"|sticky\.partitioning|dr_|on_delivery)\b.*"
)


def for_producer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a consumer's configuration as that of a producer."""
    return {name: value for name, value in config.items() if not _OF_CONSUMERS.fullmatch(name)}


def for_consumer(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a producer's configuration as that of a consumer, which names no group yet."""
    kept = ("session.timeout.ms",)
    return {
        name: value
        for name, value in config.items()
        if name in kept or not (_OF_PRODUCERS.fullmatch(name) or _OF_CONSUMERS.fullmatch(name))
    }


def check_config(config: object) -> dict[str, Any]:
    """Return a copy of confluent-kafka's configuration; an argument error if it is none, or names no broker."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(f"config: expected confluent-kafka's dict, got {type(config).__name__}")
    if not config.get("bootstrap.servers", config.get("metadata.broker.list")):
        raise ArgumentValueError("config: 'bootstrap.servers' is missing, such as 'localhost:9092'")
    return dict(config)


def is_true(value: object) -> bool:
    """Return whether librdkafka reads this value of a property as true."""
    return str(value).lower() in {"true", "t", "1"}


class KafkaFaults:
    """The errors of one client: what they mean, how often they came, and texts of them without secrets.

    Parameters
    ----------
    name : str
        Of the source or publisher.
    config : dict
        Its secrets appear in no text.

    Attributes
    ----------
    count : int
        How many errors the client reported.
    fatal : AckerError or None
        One of them ended the client.
    """

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self.count = 0
        self.fatal: AckerError | None = None
        self._error_cb: Callable[[KafkaError], object] | None = config.get("error_cb")
        # Takes a text, and returns it without the secrets of the configuration.
        self.hide = Secrets(value for key, value in config.items() if _SECRET_NAMES.search(key)).hide
        self._logged: set[int] = set()
        self._texts: list[str] = []
        self._mistake: str | None = None
        self._is_down = False

    def begin(self) -> None:
        """Forget the errors of the client before; which kinds were logged is known until the brokers answer."""
        self._texts.clear()
        self._mistake, self._is_down, self.fatal = None, False, None

    def text(self, error: KafkaError) -> str:
        """Return the name and the text of an error."""
        return self.hide(f"{error.name()}: {error.str()}")

    def error_of(self, fault: BaseException) -> KafkaError:
        """Return the client's error behind what one of its calls raised."""
        error = fault.args[0] if isinstance(fault, KafkaException) else KafkaError(KafkaError._INVALID_ARG, str(fault))
        if error.fatal():
            self.fatal = self.raised(error, "the client ended")
        return error

    def raised(self, error: KafkaError, what: str) -> AckerError:
        """Return the exception for an error that ends a client."""
        is_mistake = error.code() in MISTAKES
        if error.fatal() or error.code() == KafkaError._FATAL:
            # Such as a static member whose place another one took. One that a crash left will be gone in a while.
            is_mistake = KafkaError(KafkaError.UNRELEASED_INSTANCE_ID).str() not in error.str()
        kind = SourceError if is_mistake else ConnectionLostError
        return kind(f"{self.name}: {what}: {self.text(error)}")

    def refused(self, fault: BaseException) -> SourceError:
        """Return the exception for a configuration that the client does not take."""
        return SourceError(f"{self.name}: confluent-kafka refuses the configuration: {self.hide(fault)}")

    def on_error(self, error: KafkaError) -> None:
        """Note an error that the client copes with: it connects again by itself. Each kind is logged once an outage."""
        self.count += 1
        text = self.text(error)
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.fatal = self.raised(error, "the client ended")
            return
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._is_down = True
        else:
            self._texts = [*self._texts[-2:], text]
        # A handshake that a broker cuts while it stops counts as an error of authentication, too.
        if error.code() in MISTAKES and "transport failure" not in text:
            self._mistake = text
        if error.code() not in self._logged:
            self._logged.add(error.code())
            LOGGER.warning("%s: %s; the client goes on trying", self.name, text)
        if self._error_cb is not None:
            self.call(self._error_cb, error)

    def on_success(self) -> None:
        """Note that the brokers answer: errors are logged anew."""
        self._logged.clear()

    def guarded(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return a configuration whose callbacks raise nothing."""
        callbacks = {
            name: functools.partial(self.call, settings[name]) for name in _CALLBACKS if settings.get(name) is not None
        }
        return {**settings, **callbacks}

    def call(self, user_function: Callable[..., object], *arguments: object) -> None:
        """Call a function of the configuration; what it raises would cost the client messages that it holds."""
        try:
            user_function(*arguments)
        except Exception:  # Whatever a user's function raises.
            LOGGER.exception("%s: a callback of the configuration raised an error", self.name)

    def log(self, level: int, text: str, *arguments: str) -> None:
        """Write a line of the client's log. It is called as the method of a `logging.Logger`."""
        if arguments and arguments[0] in _REPEATED:
            level = logging.DEBUG
        LOGGER.log(level, "%s: librdkafka: %s", self.name, self.hide(text % arguments))

    def check_topics(self, client: Consumer | Producer, topics: Iterable[str], secs: float) -> None:
        """Return when the brokers know all the topics.

        Raises
        ------
        SourceError
            A topic is unknown, or credentials are wrong.
        ConnectionLostError
            No broker answers.
        """
        begun = time.monotonic()
        for topic in topics:
            while (error := self._look(client, topic)) is not None:
                client.poll(0)  # lets errors come in
                past = time.monotonic() - begun
                if self._mistake is not None:
                    raise SourceError(f"{self.name}: {self._mistake}")
                if error.code() in MISTAKES:
                    raise SourceError(f"{self.name}: topic {topic!r}: {self.text(error)}")
                if error.code() in _UNKNOWN_TOPIC and past > _UNKNOWN_TOPIC_SECS:
                    raise SourceError(
                        f"{self.name}: the brokers know no topic {topic!r}: create it, or correct the name"
                    )
                if self._is_down or past > secs:
                    why = "; ".join(dict.fromkeys([*self._texts, self.text(error)]))
                    raise ConnectionLostError(f"{self.name}: no broker answers: {why}")
                time.sleep(0.05)
        self.on_success()

    @staticmethod
    def _look(client: Consumer | Producer, topic: str) -> KafkaError | None:
        """Ask the brokers for a topic; return the error, if there is one."""
        try:
            found = client.list_topics(topic, timeout=1.0)
        except KafkaException as fault:
            error: KafkaError = fault.args[0]
        else:
            error = found.topics[topic].error
        return error


def names_of(topics: Sequence[str]) -> str:
    """Return topics as texts name them."""
    return f"topic{'s' if len(topics) > 1 else ''} {', '.join(repr(topic) for topic in topics)}"
