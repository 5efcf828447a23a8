"""Values of headers, for brokers whose headers are texts or JSON."""

from __future__ import annotations

from typing import Any


def header_text(content: Any) -> str:
    """Return a value as text: truth values as in JSON, None as an empty text, bytes that are no UTF-8 escaped."""
    if content is None:
        return ""
    if isinstance(content, bool):
        return "true" if content else "false"
    return content.decode(errors="backslashreplace") if isinstance(content, bytes) else str(content)


def header_json(content: Any) -> Any:
    """Return a value for JSON: numbers, truth values and None stay such, everything else becomes a text."""
    return content if content is None or isinstance(content, int | float) else header_text(content)
