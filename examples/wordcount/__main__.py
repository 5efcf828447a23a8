"""The commands `python -m examples.wordcount`, which `make run` runs, and `python -m examples.wordcount stream`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from acker.cli.commands import exit_with_code

WORDCOUNT_EXIT_CODES = """
\b
Exit codes:
    0  success: verified, and no line was dead-lettered
    1  the counts or the trees are wrong
    2  wrong usage: an unknown option, or a value that is not allowed
    3  verified, with dead-lettered lines
    4  a package or a JDK is missing, or Spark did not start
    5  the job failed inside Spark
  130  interrupted
"""

SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
Command = TypeVar("Command", bound=Callable[..., Any])


def word_count_options(attempts_max: int, output: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of both word counts."""
    options = (
        click.option(
            "--input",
            "folder",
            type=click.Path(path_type=Path),
            help="Count the text files under this folder.  [default: the standard library of the running Python]",
        ),
        click.option(
            "--master", default="local[*,4]", show_default=True, help="Spark master; a local one is started here."
        ),
        click.option(
            "--fail-rate",
            type=click.FloatRange(0, 1),
            default=0.005,
            show_default=True,
            help="Share of the lines that fail in the split bolt.",
        ),
        click.option(
            "--drop-rate",
            type=click.FloatRange(0, 1),
            default=0.001,
            show_default=True,
            help="Share of the lines that lose a word between two bolts.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0, 2**63 - 1),
            help="Seed of faults and ids.  [default: random]",
        ),
        click.option(
            "--max-attempts",
            type=click.IntRange(1, attempts_max),
            default=8,
            show_default=True,
            help="Dead-letter a line after this many attempts.",
        ),
        click.option(
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            default=output,
            show_default=True,
            help="Folder for the report, the dead letters and Spark's log.",
        ),
        click.option(
            "--report",
            type=click.Path(path_type=Path),
            help="File of the HTML report.  [default: report.html in --output]",
        ),
        click.option(
            "--json",
            "json_file",
            type=click.Path(path_type=Path, allow_dash=True),
            help="Write the numbers as JSON; - is the standard output.",
        ),
        click.option("--driver-memory", default="2g", show_default=True, help="Memory of Spark's driver."),
    )

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(epilog=WORDCOUNT_EXIT_CODES, context_settings=SETTINGS)
@word_count_options(1000, "acker-report")
@exit_with_code
def batch(**options: Any) -> None:
    """Count the words of text files on Spark, and track each line as a tuple tree.

    A spout reads lines, one bolt splits them, another counts words. On purpose, some lines fail and some words get
    lost: their trees are not acked, and the lines are sent again until they are. Only words of acked trees count, so
    the result is exact. At the end it is compared with a plain count of the same files.
    """
    from examples.wordcount.cli import main

    sys.exit(main(**options))


@click.command(epilog=WORDCOUNT_EXIT_CODES, context_settings=SETTINGS)
@word_count_options(1000, "acker-stream-report")
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    default=5.0,
    show_default=True,
    help="Time out a line's tree after this time, and send the line again.",
)
@click.option(
    "--spread",
    "spread_seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    default=20.0,
    show_default=True,
    help="Drop the files into the folder over this time.",
)
@click.option(
    "--kills",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Kill the driver (Python and JVM) with SIGKILL this many times, at random, and restart it.",
)
@click.option(
    "--worker-kills",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Kill a Python worker this many times, likewise.",
)
@click.option(
    "--work",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the files of the stream here.  [default: a temporary folder]",
)
@exit_with_code
def stream(**options: Any) -> None:
    """Count words in a Spark stream, track each line as a tuple tree, and kill processes on request.

    Text files are dropped into a folder that a stream reads. A spout reads lines, one bolt splits them, another counts
    words. Failed lines are sent again at once; lines that lost a word are sent again when their trees time out. The
    stream may be killed at any time and continues from its checkpoint. Only words of acked trees count: at the end each
    line was acked exactly once or dead-lettered, and the result is compared with a plain count of the same files.

    A run with the default options takes one to two minutes on two idle cores; each kill of the driver adds about ten
    seconds.
    """
    from examples.wordcount.stream_cli import main

    sys.exit(main(**options))


def main(arguments: list[str]) -> None:
    """Run the batch or, if the first argument is "stream", the stream."""
    if arguments[:1] == ["stream"]:
        stream.main(arguments[1:], prog_name="python -m examples.wordcount stream")
    else:
        batch.main(arguments, prog_name="python -m examples.wordcount")


if __name__ == "__main__":
    main(sys.argv[1:])
