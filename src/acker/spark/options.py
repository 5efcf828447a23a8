"""Options of the functions that return completions: checked once where a user calls, then passed on as one object."""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, get_type_hints

import numpy as np

from acker._engine.combiner import SHARDS_MAX, Cohorts, check_shards
from acker._engine.protocol import (
    BUCKETS_MAX,
    BUCKETS_MIN,
    HIGH_WATER_MAX,
    INT32_MAX,
    PROTOCOLS,
    check_integer,
)
from acker._files.columns import EVENT_MS_MAX
from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.session_checks import state_partitions
from acker.spark.streams.shard_rules import split_event_times
from acker.topology.suggestions import suggestion

if TYPE_CHECKING:
    from typing import NoReturn

    from pyspark.sql import SparkSession

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

DEFAULT_BUCKETS: Final = 3
DEFAULT_DELAY: Final = "0 seconds"
# The name of the observation that holds the reports.
DEFAULT_NAME: Final = "acker"

# Options of Spark's file source that make sense here, by Spark's names.
SOURCE_OPTIONS: Final = (
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "maxFileAge",
    "latestFirst",
    "fileNameOnly",
    "pathGlobFilter",
    "cleanSource",
    "sourceArchiveDir",
    "maxCachedFiles",
    "discardCachedInputRatio",
)

_STREAM_ONLY: Final = ("timeout", "buckets", "high_water", "event_time", "watermark_delay", "name")
_UNIT_SECONDS: Final = {"millisecond": 0.001, "second": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86_400.0}
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s+(" + "|".join(_UNIT_SECONDS) + r")s?\s*", re.IGNORECASE)


class CompletionKeywords(TypedDict, total=False):
    """The options that all functions have that return completions; `acker.spark.completions` describes them."""

    timeout: str | float | None
    protocol: str
    include_pending: bool
    buckets: int | None
    high_water: int | None
    event_time: str | None
    watermark_delay: str | None
    name: str | None


class ShardedKeywords(CompletionKeywords, total=False):
    """The options of functions that split the trees into shards. A pipeline was split where it began."""

    shards: int | None


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """The options of a call, checked. None stands for an option that was left out.

    Made by `check_options`; the options are those of `acker.spark.completions`.

    Attributes
    ----------
    timeout : Fraction or None
        In seconds.
    """

    shards: int | None = None
    timeout: Fraction | None = None
    protocol: str = PROTOCOLS[0]
    include_pending: bool = False
    buckets: int | None = None
    high_water: int | None = None
    event_time: str | None = None
    watermark_delay: str | None = None
    name: str | None = None

    def refuse_stream_options(self, hint: str = "") -> None:
        """Refuse options that only a stream has; for callers who have a batch.

        Parameters
        ----------
        hint : str
            Another way out, for the error.
        """
        for name in _STREAM_ONLY:
            if getattr(self, name) is not None:
                refuse_in_batch(name, hint)

    def refuse_batch_options(self) -> None:
        """Refuse options that only a batch has; for callers who have a stream."""
        if self.include_pending:
            raise ArgumentValueError(
                "include_pending: only a batch has this option, and this is a stream, which has no end at which trees"
                " could be pending: leave it out"
            )

    def stream_shards(self, session: SparkSession) -> int:
        """Return the number of shards of a stream; by default one for each state partition, within the limit."""
        return self.shards or min(state_partitions(session), SHARDS_MAX)

    @property
    def bucket_count(self) -> int:
        """Cohorts in the expiry ring."""
        return DEFAULT_BUCKETS if self.buckets is None else self.buckets

    @property
    def delay(self) -> str:
        """How far the watermark stays behind, as Spark writes durations."""
        return DEFAULT_DELAY if self.watermark_delay is None else self.watermark_delay

    @property
    def observation(self) -> str:
        """Name of the observation that holds the reports."""
        return DEFAULT_NAME if self.name is None else self.name

    @property
    def timeout_ms(self) -> Fraction | None:
        """The timeout in milliseconds. By event time, which has whole ones, a whole number of at least one."""
        if self.timeout is None:
            return None
        exact = self.timeout * 1000
        return exact if self.event_time is None else Fraction(round(exact))

    @property
    def cohorts(self) -> Cohorts | None:
        """How event times are split into cohorts; None where trees expire by the clock."""
        if self.event_time is None:
            return None
        return split_event_times(self.timeout_ms, self.bucket_count)


@dataclass(frozen=True, kw_only=True)
class FileSourceOptions:
    """The options of the source that watches a directory, checked.

    Made by `check_source_options`; the parameters are those of `acker.spark.completions_from_files`.

    Attributes
    ----------
    spark_options : dict
        Options of Spark's file source, by Spark's names.
    """

    spark_options: Mapping[str, Any]
    skip_foreign_files: bool = False


def takes_options(keywords: type) -> Callable[[FunctionT], FunctionT]:
    """Give a function that takes ``**options`` of a TypedDict their names, for `help` and for the error of a wrong one.

    Parameters
    ----------
    keywords : type
        `CompletionKeywords` or `ShardedKeywords`. Defaults are those of `CompletionOptions`.
    """

    def decorate(function: FunctionT) -> FunctionT:
        signature = inspect.signature(function)
        plain = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=getattr(CompletionOptions, name), annotation=kind
            )
            for name, kind in get_type_hints(keywords).items()
        ]
        known = [each.name for each in (*plain, *options) if each.kind is inspect.Parameter.KEYWORD_ONLY]
        names = {each.name for each in (*plain, *options)}

        @functools.wraps(function)
        def checked(*arguments: Any, **given: Any) -> Any:
            for name in given:
                if name not in names:
                    raise ArgumentTypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}; {suggestion(name, known)}"
                    )
            return function(*arguments, **given)

        checked.__signature__ = signature.replace(parameters=[*plain, *options])  # type: ignore[attr-defined]
        del checked.__wrapped__  # its source has other parameters, which Sphinx would take the defaults from
        return checked  # type: ignore[return-value]

    return decorate


def check_options(**options: Unpack[ShardedKeywords]) -> CompletionOptions:
    """Check the options of a call, each by itself; whether they suit a batch or a stream is checked by the caller.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        The option, what was expected and what it is.
    """
    given: Mapping[str, object] = options
    protocol = given.get("protocol", PROTOCOLS[0])
    if protocol == "fsshelter":
        raise ArgumentValueError(
            "protocol: 'fsshelter' needs the order of messages, which a DataFrame does not have; expected 'storm' or"
            " 'storm-0.9'"
        )
    if not isinstance(protocol, str) or protocol not in PROTOCOLS:
        raise ArgumentValueError(f"protocol: expected 'storm' or 'storm-0.9', got {protocol!r}")
    event_time = _check_text("event_time", given.get("event_time"), "the name of a column")
    shards, buckets, high_water = (given.get(name) for name in ("shards", "buckets", "high_water"))
    return CompletionOptions(
        shards=None if shards is None else check_shards(shards),
        timeout=_check_timeout(given.get("timeout"), by_event_time=event_time is not None),
        protocol=protocol,
        include_pending=bool(given.get("include_pending")),
        buckets=None if buckets is None else check_integer("buckets", buckets, BUCKETS_MIN, BUCKETS_MAX),
        high_water=None if high_water is None else check_integer("high_water", high_water, 0, HIGH_WATER_MAX),
        event_time=event_time,
        watermark_delay=_check_text("watermark_delay", given.get("watermark_delay"), "a duration such as '10 seconds'"),
        name=_check_text("name", given.get("name"), "the name of an observation"),
    )


def check_source_options(
    *, max_files_per_trigger: object = None, source_options: object = None, skip_foreign_files: object = False
) -> FileSourceOptions:
    """Check the options of the source that watches a directory.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
        The option, what was expected and what it is.
    """
    if source_options is not None and not isinstance(source_options, Mapping):
        raise ArgumentTypeError(
            f"source_options: expected a mapping of names to values, got {type(source_options).__name__}"
        )
    names = {name.lower(): name for name in SOURCE_OPTIONS}
    options: dict[str, Any] = {}
    for name, value in (source_options or {}).items():
        if str(name).lower() not in names:
            raise ArgumentValueError(
                f"source_options: expected options of Spark's file source, {', '.join(SOURCE_OPTIONS)}, got {name!r}"
            )
        options[names[name.lower()]] = value
    if max_files_per_trigger is not None:
        if "maxFilesPerTrigger" in options:
            raise ArgumentValueError("max_files_per_trigger: expected it once, got it in source_options too")
        options["maxFilesPerTrigger"] = check_integer("max_files_per_trigger", max_files_per_trigger, 1, INT32_MAX)
    return FileSourceOptions(spark_options=options, skip_foreign_files=bool(skip_foreign_files))


def refuse_in_batch(name: str, hint: str = "") -> NoReturn:
    """Refuse an option that only a stream has.

    Raises
    ------
    ArgumentValueError
        Always.
    """
    raise ArgumentValueError(f"{name}: only a stream has this option, and this is a batch: leave it out{hint}")


def _check_text(name: str, value: object, expected: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentTypeError(f"{name}: expected {expected}, got {type(value).__name__}")
    if not value:
        raise ArgumentValueError(f"{name}: expected {expected}, got ''")
    return value


def _check_timeout(timeout: object, *, by_event_time: bool) -> Fraction | None:
    """Return a timeout in seconds; None stays None.

    Parameters
    ----------
    timeout : str, number or None
        A text as Spark writes durations, such as "90 seconds" or "1.5 minutes"; or a number of seconds above 0.
    by_event_time : bool
        Whether trees expire by event time, which bounds the timeout.
    """
    expected = "expected a duration such as '90 seconds' or a number of seconds above 0"
    if timeout is None:
        return None
    if isinstance(timeout, str):
        match = _DURATION.fullmatch(timeout)
        if match is None:
            raise ArgumentValueError(f"timeout: {expected}, got {timeout!r}")
        seconds = float(match[1]) * _UNIT_SECONDS[match[2].lower()]
    elif isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise ArgumentTypeError(f"timeout: {expected}, got {type(timeout).__name__}")
    if not 0 < seconds < math.inf:
        raise ArgumentValueError(f"timeout: {expected}, got {timeout!r}")
    exact = Fraction(seconds).limit_denominator(10**9)
    if by_event_time and not 1 <= exact * 1000 <= EVENT_MS_MAX:
        raise ArgumentValueError(f"timeout: by event time expected 1 millisecond to 8,000 years, got {timeout!r}")
    return exact
