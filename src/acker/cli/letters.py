"""`acker letters`: dead letters on the command line."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, ParamSpec

import click

from acker.cli.load import UsageError, load_letters
from acker.connectors.dead_letter_file import value_json
from acker.connectors.headers import header_json
from acker.connectors.letters import Letter, LettersReport, Where
from acker.errors import ArgumentTypeError, ArgumentValueError, ConnectionLostError, SourceError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGE: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_KEY_WIDTH, _REASON_WIDTH = 24, 60

Options = ParamSpec("Options")


def parse_age(text: str) -> float:
    """Return the seconds of an age such as 90s, 15m, 2h or 7d."""
    found = _AGE.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"expected a number and s, m, h or d, such as 90s or 2d, got {text!r}")
    return float(found[1]) * _UNITS[found[2]]


def _with_exit_code(command: Callable[Options, int]) -> Callable[Options, int]:
    """Turn the errors of brokers and files into one sentence and exit code 1, and wrong arguments into code 2."""

    @functools.wraps(command)
    def run(*args: Options.args, **options: Options.kwargs) -> int:
        logging.basicConfig(format="acker: %(message)s")
        try:
            return command(*args, **options)
        except (ArgumentTypeError, ArgumentValueError) as error:
            raise UsageError(str(error)) from error
        except (SourceError, ConnectionLostError) as error:
            click.echo(f"acker: {error}", err=True)
            return 1

    return run


def _chosen(ids: Sequence[str], reason: str | None, key: str | None, older: float | None, newer: float | None) -> Where:
    """Return the function that says whether a letter is meant."""
    now = datetime.now(UTC)

    def is_meant(letter: Letter) -> bool:
        age_secs = letter.age_secs(now)
        return (
            (not ids or letter.letter_id in ids)
            and (reason is None or reason in letter.reason)
            and (key is None or key in letter.key)
            and (older is None or (age_secs is not None and age_secs > older))
            and (newer is None or (age_secs is not None and age_secs < newer))
        )

    return is_meant


@_with_exit_code
def print_list(place: str, most: int, *, as_json: bool, **choice: Any) -> int:
    """Print one line for each letter."""
    report = load_letters(place, None, most)[0].find(_chosen(**choice))
    for letter in report.letters:
        click.echo(json.dumps(_as_json(letter)) if as_json else _line(letter))
    return _conclude(report, "letter" if len(report.letters) == 1 else "letters", most, choice["ids"])


@_with_exit_code
def show(place: str, most: int, **choice: Any) -> int:
    """Print letters whole."""
    report = load_letters(place, None, most)[0].find(_chosen(**choice))
    for letter in report.letters:
        text = json.dumps(_as_json(letter), indent=2, ensure_ascii=False)
        click.echo("".join(each if each.isprintable() or each == "\n" else f"\\u{ord(each):04x}" for each in text))
    return _conclude(report, "shown", most, choice["ids"])


@_with_exit_code
def retry(place: str, most: int, to: str | None, **choice: Any) -> int:
    """Publish letters again."""
    letters, publisher = load_letters(place, to, most)
    if publisher is None and not letters.has_source:
        raise UsageError(
            f"--to: {place} does not say where its letters go: write --to MODULE:PUBLISHER, or --to MODULE:CONSUMER"
            " for those of that consumer"
        )
    report = letters.retry(_chosen(**choice), to=publisher)
    return _conclude(report, "published again, and dropped", most, choice["ids"])


@_with_exit_code
def drop(place: str, most: int, *, yes: bool, **choice: Any) -> int:
    """Drop letters: without a question, or those that the question was about."""
    letters, _ = load_letters(place, None, most)
    is_meant = _chosen(**choice)
    if not yes:
        found = letters.find(is_meant)
        if found.letters and not click.confirm(f"Drop {len(found.letters)} letters for good?", err=True):
            click.echo("nothing was dropped", err=True)
            return 0
        ids = {letter.letter_id for letter in found.letters}
        is_meant = lambda letter: letter.letter_id in ids  # noqa: E731
    return _conclude(letters.drop(is_meant), "dropped", most, choice["ids"])


def _conclude(report: LettersReport, done: str, most: int, ids: Sequence[str]) -> int:
    """Say what was done, and what was not; return the exit code."""
    click.echo(f"{len(report.letters)} {done}", err=True)
    if report.others:
        click.echo(f"{report.others} letters of other sources are left alone", err=True)
    if not report.is_all:
        click.echo(f"this looked at {most} letters, and there may be more: see --most", err=True)
    known = {letter.letter_id for letter in report.letters} | {letter.letter_id for letter, _ in report.refused}
    if missing := [each for each in ids if each not in known]:
        click.echo(f"no such letter: {', '.join(missing)}", err=True)
    for letter, error in report.refused:
        click.echo(f"{letter.letter_id} stays: {error}", err=True)
    return 1 if report.refused else 0


def _line(letter: Letter) -> str:
    attempts = "?" if letter.attempts is None else str(letter.attempts)
    words = (letter.letter_id, f"{_age_of(letter):>5}", f"{attempts:>3}", f"{_short(letter.key, _KEY_WIDTH):24}")
    return f"{'  '.join(words)}  {_short(letter.reason, _REASON_WIDTH)}".rstrip()


def _age_of(letter: Letter) -> str:
    age_secs = letter.age_secs()
    if age_secs is None:
        return "?"
    unit = next((unit for unit in "dhm" if age_secs >= 2 * _UNITS[unit]), "s")
    return f"{age_secs // _UNITS[unit]:.0f}{unit}"


def _short(text: str, width: int) -> str:
    """Return a text in one line, without characters that a terminal would obey."""
    line = "".join(each if each.isprintable() else "\N{MIDDLE DOT}" for each in text)
    return line if len(line) <= width else f"{line[: width - 1]}\N{HORIZONTAL ELLIPSIS}"


def _as_json(letter: Letter) -> dict[str, Any]:
    return {
        "id": letter.letter_id,
        "time": None if letter.time is None else letter.time.isoformat(),
        "source": letter.source,
        "key": letter.key,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "to": letter.to,
        "headers": {name: header_json(value) for name, value in letter.headers.items()},
        **({"properties": dict(letter.properties)} if letter.properties else {}),
        **value_json(letter.value),
    }
