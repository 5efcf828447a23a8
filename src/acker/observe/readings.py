"""The parts of a reading of the live page that all runtimes make alike: rows of failures and holders, charts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from acker.observe.failures import DeadLetter, Failure, shown_id
from acker.observe.holders import Holder
from acker.observe.reasons import Reason

# How many rows of each list are sent.
ROWS_MAX: Final = 50
_REASONS_MAX: Final = 5
_DIGITS: Final = re.compile(r"\d+")


def failure_row(failure: Failure) -> dict[str, Any]:
    """Return a failure as values for JSON."""
    return {
        "number": failure.number,
        "at_ms": failure.at_ms,
        "id": shown_id(failure.tup_id),
        "spout": failure.component,
        "elapsed_ms": failure.elapsed_ms,
        **_reason_row(failure.reason),
    }


def letter_row(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter without its values, as values for JSON."""
    return {
        "number": letter.number,
        "at_ms": letter.at_ms,
        "id": shown_id(letter.tup_id),
        "spout": letter.component,
        "can_replay": letter.can_replay,
        **_reason_row(letter.reason),
    }


def holder_rows(holders: Iterable[Holder]) -> list[dict[str, Any]]:
    """Return holders as values for JSON."""
    return [
        {
            "component": each.component,
            "task": each.task,
            "how": each.how,
            "for_ms": each.for_ms,
            **({} if each.text is None else {"text": each.text}),
        }
        for each in holders
    ]


def common_reasons(failures: Sequence[Failure]) -> dict[str, Any]:
    """Return how many failures are of which kind, the most frequent kind first: `reasons` and `counted`.

    Texts often have ids in them. So of an exception its type alone counts, and numbers do not.
    """

    def kind_of(reason: Reason) -> tuple[str, str | None, str | None]:
        why = _DIGITS.sub("\N{HORIZONTAL ELLIPSIS}", (reason.exception or "").split(":")[0])
        return reason.kind.value, reason.component, why or None

    common = Counter(kind_of(each.reason) for each in failures).most_common(_REASONS_MAX)
    rows = [{"count": n, "kind": kind, "component": name, "why": why} for (kind, name, why), n in common]
    return {"counted": len(failures), "reasons": rows}


def _reason_row(reason: Reason) -> dict[str, Any]:
    return {
        "kind": reason.kind.value,
        "component": reason.component,
        "task": reason.task,
        "why": None if reason.exception is None else " ".join(reason.exception.split())[:500],
        "attempt": reason.attempt,
    }


def chart(key: str, title: str, unit: str, **values: float | None) -> dict[str, Any]:
    """Return one chart of a view, with the values of this moment by the names of its lines."""
    series = [{"key": name, "label": name.replace("_", " "), "value": rounded(value)} for name, value in values.items()]
    return {"key": key, "title": title, "unit": unit, "series": series}


def rounded(value: float | None) -> float | None:
    """Return a number with four significant digits, or without a fraction from a thousand on; None stays None."""
    return None if value is None else float(f"{value:.4g}") if abs(value) < 1_000 else round(value)
