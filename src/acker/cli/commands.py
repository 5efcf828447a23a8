"""What can be typed after `acker`, and what it answers to the shell."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from acker import __version__
from acker.cli.environment import SetupError

EXIT_CODES = """
\b
Exit codes:
    0  fine (run: verified, and no line was dead-lettered)
    1  run: the counts or the trees are wrong; doctor: something is not fine
    2  usage: an option or a folder that cannot be
    3  run: verified, with dead-lettered lines
    4  something is missing: a package, a JDK, Spark did not start
    5  the job failed inside Spark
  130  interrupted
"""

Command = TypeVar("Command", bound=Callable[..., Any])


def fail(text: str, code: int) -> NoReturn:
    """Say one sentence and leave."""
    click.echo(f"acker: {text}", err=True)
    sys.exit(code)


def guarded(command: Command) -> Command:
    """Turn what a command raises into one sentence and an exit code."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except SetupError as fault:
            fail(str(fault), 4)
        except KeyboardInterrupt:
            fail("interrupted", 130)

    return run  # type: ignore[return-value]


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="acker")
def cli() -> None:
    """Know, for every message that enters a pipeline, when everything derived from it is finished."""


@cli.group()
def run() -> None:
    """Run a job that is tracked by the acker."""


@run.command(epilog=EXIT_CODES)
@click.option(
    "--input",
    "folder",
    type=click.Path(path_type=Path),
    help="Count the text files under this folder.  [default: the standard library of the running Python]",
)
@click.option("--master", default="local[*,4]", show_default=True, help="Spark master; local ones are started here.")
@click.option(
    "--fail-rate", type=click.FloatRange(0, 1), default=0.005, show_default=True, help="Lines that split raises for."
)
@click.option(
    "--drop-rate",
    type=click.FloatRange(0, 1),
    default=0.001,
    show_default=True,
    help="Lines that lose a word on the way.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="Repeats the faults and ids of a run.  [default: random]"
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Send a line this often, then dead-letter it.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default="acker-report",
    show_default=True,
    help="Folder for the report, the dead letters and Spark's log.",
)
@click.option("--report", type=click.Path(path_type=Path), help="The HTML report.  [default: report.html in --output]")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="The numbers as JSON; - for stdout."
)
@click.option("--driver-memory", default="2g", show_default=True, help="Memory of the Spark that is started here.")
@guarded
def wordcount(**options: Any) -> None:
    """Count words, each line of text a tracked tree.

    Lines go from a spout through a bolt that splits them to a bolt that counts words. Some lines fail and some words
    get lost, on purpose; their trees do not end acked, and they are sent again until they do. Only words of acked trees
    count, so the result is exact: at the end it is compared with a plain count of the same files.
    """
    from acker.cli.wordcount import main

    sys.exit(main(**options))


@cli.command(epilog=EXIT_CODES)
@click.option("--master", default="local[*]", show_default=True, help="Spark master to look at.")
@guarded
def doctor(master: str) -> None:
    """Show versions, and run one task on each core of each executor."""
    from acker.cli.doctor import main

    sys.exit(main(master))


@cli.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@guarded
def bench(arguments: tuple[str, ...]) -> None:
    """Measure; `acker bench --help` lists what."""
    try:
        from acker.bench import main
    except ModuleNotFoundError as fault:
        raise SetupError(f"{fault.name} is not installed: pip install 'acker[spark,cli]'") from fault

    sys.exit(main(list(arguments)))
