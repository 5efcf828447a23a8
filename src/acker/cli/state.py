"""`acker state inspect`: the ackers in a checkpoint, as a table or as JSON."""

from __future__ import annotations

import datetime
import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import click

from acker.cli.environment import announce, require, spark_session
from acker.cli.load import UsageError
from acker.errors import ArgumentValueError

if TYPE_CHECKING:
    from rich.table import Table

    from acker.spark.streams.checkpoint import AckerState, ShardState

# Settings of Hadoop and Spark, with which a path without a scheme may be on another file system.
_SETTINGS = ("core-site.xml", "spark-defaults.conf")
_SETTINGS_IN = {"HADOOP_CONF_DIR": "", "SPARK_CONF_DIR": "", "SPARK_HOME": "conf"}

# The bounds of `acker.spark.streams.checkpoint.AGE_BOUNDS_MS`, as people say them.
_BOUNDS = ("1 s", "10 s", "1 min", "10 min", "1 h", "1 d")
_HEADINGS = ("shard", "pending", "open", "oldest", "log", "chunks", "acked", "failed", "timed out", "rejected", "clock")


def inspect(checkpoint: str, *, operator: int | None, as_json: bool, master: str, driver_memory: str) -> int:
    """Show the ackers of a checkpoint, and return the exit code: 1 if the state of a shard is damaged."""
    if not as_json:
        require("rich", extra="cli")
    _check_folder(checkpoint, master)
    announce(f"starting Spark at {master}")
    with (
        tempfile.TemporaryDirectory(prefix="acker-state-") as scratch,
        spark_session(
            "acker state inspect", master, driver_memory=driver_memory, log=Path(scratch, "spark.log")
        ) as spark,
    ):
        from acker.spark.streams.checkpoint import inspect_checkpoint

        spark.sparkContext.setLogLevel("OFF")  # failures are reported in one sentence
        announce(f"reading {checkpoint}")
        try:
            found = inspect_checkpoint(spark, checkpoint, operator)
        except ArgumentValueError as error:
            raise UsageError(str(error)) from error
    if as_json:
        text = {"checkpoint": checkpoint, "ackers": [to_json(acker) for acker in found]}
        sys.stdout.write(json.dumps(text, indent=2) + "\n")
    else:
        for acker in found:
            _show(checkpoint, acker)
    faults = [(acker, state) for acker in found for state in acker.states if state.fault]
    for acker, state in faults:
        where = f"operator {acker.operator}, partition {state.partition}"
        shard = f", shard {state.shard}" if state.shard >= 0 else ""
        click.echo(f"acker: {where}{shard}: {state.fault}", err=True)
    return 1 if faults else 0


def _check_folder(checkpoint: str, master: str) -> None:
    """Refuse a folder that this machine does not have, before Spark is started to look for it."""
    scheme, colon, rest = checkpoint.partition(":")
    if colon and scheme == "file":
        path = Path("/", unquote(rest).lstrip("/"))
    elif (colon and rest.startswith("/")) or not master.startswith("local") or _has_settings():
        return
    else:
        path = Path(checkpoint)
    if not path.is_dir():
        raise UsageError(f"{checkpoint}: expected the checkpointLocation of a query with state, found no folder there")


def _has_settings() -> bool:
    folders = [Path(os.environ[name], below) for name, below in _SETTINGS_IN.items() if os.environ.get(name)]
    return any((folder / name).is_file() for folder in folders for name in _SETTINGS)


def to_json(acker: AckerState) -> dict[str, Any]:
    """Return an acker as JSON takes it."""
    from acker.spark.streams.checkpoint import AGE_BOUNDS_MS

    states = [{**state._asdict(), "counts": state.counts._asdict()} for state in acker.states]
    return {**acker._asdict(), "age_bounds_ms": AGE_BOUNDS_MS, "states": states}


def _show(checkpoint: str, acker: AckerState) -> None:
    from rich.console import Console

    # In a file or a pipe, lines need not be folded at 80.
    console = Console(width=None if sys.stdout.isatty() else 120)
    by = "the watermark" if acker.event_time else "the clock"
    click.echo(f"{checkpoint}, operator {acker.operator}, after micro-batch {acker.batch_id}")
    click.echo(
        f"format {acker.version}; {acker.shards} shards in {acker.partitions} partitions; trees expire by {by};"
        f" {len(acker.states)} shards have state"
    )
    console.print(_table(acker))
    for text, count in ages(acker):
        click.echo(f"  {text:<16} {count:>14,}")


def _table(acker: AckerState) -> Table:
    from rich.table import Table

    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading, justify="right")
    for index, state in enumerate(acker.states, 1):
        table.add_row(*cells(state), end_section=index == len(acker.states))
    table.add_row(*total(acker.states))
    return table


def cells(state: ShardState) -> tuple[str, ...]:
    """Return a shard as a row of the table."""
    counts = state.counts
    return (
        str(state.shard) if state.shard >= 0 else "?",
        f"{state.pending:,}",
        f"{state.open:,}",
        age(state.oldest_age_ms) if state.pending else "",
        f"{state.log_bytes:,}",
        f"{state.chunks:,}",
        *(f"{count:,}" for count in (counts.acked, counts.failed, counts.timed_out, counts.rejected)),
        datetime.datetime.fromtimestamp(state.time_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
    )


def total(states: tuple[ShardState, ...]) -> tuple[str, ...]:
    """Return all shards as a row of the table."""
    sums = [sum(getattr(state, name) for state in states) for name in ("pending", "open", "log_bytes", "chunks")]
    ends = [
        sum(getattr(state.counts, name) for state in states) for name in ("acked", "failed", "timed_out", "rejected")
    ]
    pending, open_, log_bytes, chunks = (f"{value:,}" for value in sums)
    oldest = age(max(state.oldest_age_ms for state in states)) if sums[0] else ""
    return ("all", pending, open_, oldest, log_bytes, chunks, *(f"{value:,}" for value in ends), "")


def age(ms: int) -> str:
    """Return an age in the unit that suits it."""
    for unit, scale in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= scale:
            return f"{ms / scale:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def ages(acker: AckerState) -> list[tuple[str, int]]:
    """Return the number of entries in each age group that has any."""
    between = (f"{low} to {high}" for low, high in pairwise(_BOUNDS))
    texts = (f"under {_BOUNDS[0]}", *between, f"{_BOUNDS[-1]} and more")
    counts = (sum(column) for column in zip(*(state.ages for state in acker.states), strict=True))
    return [(text, count) for text, count in zip(texts, counts, strict=False) if count]
