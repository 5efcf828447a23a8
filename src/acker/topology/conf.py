"""The options of a topology: names, defaults and ranges, and the names of Storm and streamparse that are accepted."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from acker._engine.protocol import BUCKETS_MAX, BUCKETS_MIN, HIGH_WATER_MAX
from acker.errors import ArgumentTypeError, ConfError

_SECS_MAX: Final = 49 * 24 * 3600  # the engine measures a tree's age in 32 bits of milliseconds


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its default, its meaning, and the check of a value."""

    default: Any
    expected: str
    accepts: Callable[[Any], bool]
    meaning: str

    def check(self, name: str, value: Any) -> Any:
        """Return the value, or raise ConfError."""
        if not self.accepts(value):
            raise ConfError(f"option {name!r}: expected {self.expected}, got {value!r}")
        return value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(default: int | None, meaning: str, low: int, high: int | None = None, *, none: bool = False) -> Option:
    expected = f"an int of at least {low}" if high is None else f"an int from {low} to {high}"

    def accepts(value: Any) -> bool:
        return (none and value is None) or (_is_int(value) and low <= value and (high is None or value <= high))

    return Option(default, f"{expected} or None" if none else expected, accepts, meaning)


def _number(
    default: float | None,
    meaning: str,
    low: float,
    high: float,
    *,
    none: bool = False,
    open_low: bool = False,
) -> Option:
    expected = f"a number {'above' if open_low else 'from'} {low} {'and at most' if open_low else 'to'} {high}"

    def accepts(value: Any) -> bool:
        if value is None:
            return none
        if not (_is_int(value) or (isinstance(value, float) and math.isfinite(value))):
            return False
        return bool(low < value <= high if open_low else low <= value <= high)

    return Option(default, f"{expected} or None" if none else expected, accepts, meaning)


def _seconds(default: float | None, meaning: str, *, none: bool = False) -> Option:
    return _number(default, meaning, 0, _SECS_MAX, none=none, open_low=True)


def _boolean(default: bool, meaning: str) -> Option:
    return Option(default, "True or False", lambda value: isinstance(value, bool), meaning)


def _text(default: str | None, meaning: str) -> Option:
    return Option(default, "a str or None", lambda value: value is None or isinstance(value, str), meaning)


OPTIONS: Final[dict[str, Option]] = {
    "topology.name": _text(None, "name in logs and reports; by default that of the class"),
    "topology.acker.tasks": _integer(
        1, "number of ackers; 0: nothing is tracked, and a spout's ack follows its emit at once", 0, 1024
    ),
    "topology.acker.buckets": _integer(
        3,
        "precision of timeouts: a tree expires within timeout / (buckets - 1) of its deadline",
        BUCKETS_MIN,
        BUCKETS_MAX,
    ),
    "topology.acker.high_water": _integer(
        None, "number of trees at which an acker rejects new ones", 1, HIGH_WATER_MAX, none=True
    ),
    "topology.message.timeout.secs": _seconds(30, "seconds that a tree may take; fractions are allowed"),
    "topology.enable.message.timeouts": _boolean(
        True, "False: trees never time out; only without topology.max.spout.pending"
    ),
    "topology.max.spout.pending": _integer(
        128, "limit of tracked tuples that one spout task may have open; None: no limit", 1, none=True
    ),
    "topology.tick.tuple.freq.secs": _seconds(None, "seconds between two ticks of a bolt; None: no ticks", none=True),
    "topology.executor.receive.buffer.size": _integer(8192, "number of tuples that the queue of an executor holds", 1),
    "topology.arrow.batch.rows": _integer(8192, "number of rows that an ArrowBolt processes at most at once", 1),
    "topology.arrow.batch.bytes": _integer(
        256_000_000, "limit of the bytes of an emitted batch; None: no limit", 1, none=True
    ),
    "topology.trace.sample": _integer(None, "N: the deliveries of one tree in N are traced for reports", 1, none=True),
    "topology.stats.sample.rate": _number(0.05, "share of tuples whose latency is measured", 0, 1),
    "topology.drain.secs": _number(
        None, "seconds that a stop waits for open trees; None: the message timeout", 0, _SECS_MAX, none=True
    ),
    "topology.max.restarts": _integer(5, "restarts in a row after which the topology stops with the error", 0),
    "topology.no.restart": _boolean(False, "True: the first exception that escapes stops the topology"),
    "topology.restart.healthy.secs": _seconds(60, "seconds without an exception after which a restart is forgotten"),
    "topology.sleep.spout.wait.strategy.time.ms": _number(
        1, "milliseconds that an executor waits when its spouts emit nothing", 0, 60_000
    ),
    "topology.async.max.concurrency": _integer(128, "number of coroutines that one executor runs at once", 1),
    "topology.spark.batch.bytes": _integer(
        None,
        "on Spark: bytes of tuples at which a micro-batch is full; at twice as many spouts wait. None: a tenth of the"
        " driver's memory, at most 64 MB",
        1,
        1_000_000_000,
        none=True,
    ),
    "topology.spark.streaming": _boolean(False, "set by acker.spark: whether the topology runs as a stream"),
    "topology.debug": _boolean(False, "the attribute `debug` of components"),
}

# Another name -> the name of the option.
ALIASES: Final[dict[str, str]] = {
    "topology.acker.executors": "topology.acker.tasks",
}

# Accepted without effect, so that a topology from a cluster runs unchanged: Storm's options for workers, scheduler,
# serializers and windows (storm-client Config.java@32be4e3, and 1.x), without the prefix "topology.".
_INERT_TOPOLOGY: Final = """
acker.cpu.pcore.percent acker.resources.offheap.memory.mb acker.resources.onheap.memory.mb auto-credentials
auto.task.hooks backpressure.check.millis backpressure.enable backpressure.wait.strategy
batch.flush.interval.millis blobstore.map bolt.wait.strategy bolts.late.tuple.stream bolts.message.id.field.name
bolts.outgoing.overflow.buffer.enable bolts.tuple.timestamp.field.name bolts.tuple.timestamp.max.lag.ms
bolts.watermark.event.interval.ms bolts.window.length.count bolts.window.length.duration.ms
bolts.window.sliding.interval.count bolts.window.sliding.interval.duration.ms builtin.metrics.bucket.size.secs
classpath classpath.beginning component.cpu.pcore.percent component.resources.offheap.memory.mb
component.resources.onheap.memory.mb disable.loadaware.messaging disruptor.batch.size
disruptor.batch.timeout.millis disruptor.wait.strategy disruptor.wait.timeout.millis environment
error.throttle.interval.secs event.logger.register eventlogger.executors executor.overflow.limit
executor.send.buffer.size fall.back.on.java.serialization groups isolate.machines kryo.decorators kryo.factory
kryo.register logging.sensitivity max.error.report.per.interval max.replication.wait.time.sec
max.task.parallelism metrics.consumer.register metrics.metric.name.separator min.replication.count
multilang.serializer optimize priority producer.batch.size python.path readonly.groups readonly.users
receiver.buffer.size scheduler.favored.nodes scheduler.strategy scheduler.unfavored.nodes serializer
shellbolt.max.pending skip.missing.kryo.registrations spout.wait.strategy spread.components
state.checkpoint.interval.ms state.kryo.register state.provider state.provider.config
state.synchronization.timeout.secs submitter.principal submitter.user subprocess.timeout.secs tasks
testing.always.try.serialize transactional.id transfer.batch.size transfer.buffer.size
trident.batch.emit.interval.millis trident.windowing.cache.tuple.limit tuple.serializer users version
worker.childopts worker.gc.childopts worker.logwriter.childopts worker.max.heap.size.mb worker.metrics
worker.nimbus.max.wait worker.shared.thread.pool.size worker.timeout.secs workers
"""
# Those of streamparse, and of pystorm's log handler. Set up logging as in any Python program.
_INERT_STREAMPARSE: Final = """
pystorm.log.path pystorm.log.file pystorm.log.max_bytes pystorm.log.backup_count pystorm.log.level pystorm.log.format
virtualenv_root virtualenv_name virtualenv_flags use_virtualenv install_virtualenv use_ssh_for_nimbus serializer
"""
INERT: Final[frozenset[str]] = frozenset(
    [*(f"topology.{name}" for name in _INERT_TOPOLOGY.split()), *_INERT_STREAMPARSE.split()]
)
# Options of the daemons of a cluster.
INERT_PREFIXES: Final = (
    *("backpressure.", "blobstore.", "client.", "drpc.", "logviewer.", "nimbus.", "pacemaker.", "resource.aware."),
    *("scheduler.", "storm.", "supervisor.", "task.", "transactional.", "ui.", "worker.", "zmq."),
)
OWN_PREFIX: Final = "user."
# The weight of likeness to the first words of an option. Likeness to a whole name has weight 1.
_OF_BEGIN: Final = 0.96
# The weight of likeness to an option without effect, which few mean.
_OF_INERT: Final = 0.9
_EXAMPLE: Final = '{"topology.message.timeout.secs": 10}'


def _is_inert(name: object) -> bool:
    return name in INERT or str(name).startswith(INERT_PREFIXES)


def check(conf: Mapping[str, Any]) -> dict[str, Any]:
    """Check options one by one; return them by their canonical names, without defaults.

    Raises
    ------
    ConfError
        An option is unknown or given twice, or its value has a wrong type or is out of range.
    ArgumentTypeError
        The argument is not a mapping.
    """
    if not isinstance(conf, Mapping):
        raise ArgumentTypeError(f"conf: expected a dict of options such as {_EXAMPLE}, got {conf!r}")
    checked: dict[str, Any] = {}
    for name, value in conf.items():
        canonical = ALIASES.get(name, name)
        if canonical in checked:
            raise ConfError(f"options {name!r} and {canonical!r} are the same option; keep one of them")
        option = OPTIONS.get(canonical)
        if option is not None:
            checked[canonical] = option.check(name, value)
        elif _is_inert(name) or str(name).startswith(OWN_PREFIX):
            checked[name] = value
        else:
            raise _unknown(name)
    return checked


def _unknown(name: object) -> ConfError:
    near = max([*OPTIONS, *ALIASES, *sorted(INERT)], key=lambda known: _likeness(str(name).lower(), known))
    note = ", which has no effect here" if _is_inert(near) else ""
    return ConfError(
        f"option {name!r} is unknown; the nearest is {near!r}{note}. Your own options begin with {OWN_PREFIX!r}"
    )


def _likeness(name: str, known: str) -> tuple[bool, bool, float, float]:
    """Return whether an option has all words of a name, and then an effect, and how much they are alike.

    That is how much the name is like an option, or like the first words of one, and how much like all of it.
    """
    parts = _words(known)
    has_words = all(any(part.startswith(word) for part in parts) for word in _words(name))
    whole = difflib.SequenceMatcher(None, known, name).ratio()
    words = name.count(".") + 1
    begin = ".".join(known.split(".")[:words])
    # One word begins all options. Of two options that begin alike, the one that is more alike as a whole.
    alike = difflib.SequenceMatcher(None, begin, name).ratio() if words > 1 else 0.0
    weight = _OF_INERT if _is_inert(known) else 1.0
    return has_words, has_words and not _is_inert(known), weight * max(whole, _OF_BEGIN * alike), whole


def _words(name: str) -> list[str]:
    return name.replace("_", ".").split(".")


def resolve(*mappings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return every option by its canonical name, defaults included.

    Parameters
    ----------
    *mappings : dict, or None
        A later one overrides an earlier one.

    Raises
    ------
    ConfError
        As for `check`; also for options that contradict each other.
    """
    resolved = {name: option.default for name, option in OPTIONS.items()}
    for mapping in mappings:
        resolved.update(check({} if mapping is None else mapping))
    if not resolved["topology.enable.message.timeouts"] and resolved["topology.max.spout.pending"] is not None:
        raise ConfError(
            "option 'topology.enable.message.timeouts': expected True while 'topology.max.spout.pending' is "
            f"{resolved['topology.max.spout.pending']}, got False; a lost tuple would count as open for ever. "
            "Set 'topology.max.spout.pending' to None, or leave timeouts on"
        )
    return resolved


def inert_options(conf: Mapping[str, Any]) -> list[str]:
    """Return the options that are accepted but have no effect here, sorted."""
    return sorted(filter(_is_inert, conf))
