"""The action that every live page has: the level of the log, and what that is now."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from acker.ui.source import ActionError

_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")


def set_log_level(arguments: Mapping[str, Any]) -> str:
    """Set the level of the logger "acker"."""
    level = arguments.get("level")
    if level not in _LEVELS:
        raise ActionError(f'expected {{"level": ...}}, one of {", ".join(_LEVELS)}')
    logging.getLogger("acker").setLevel(level)
    return f"set the log level of acker to {level}"


def log_level() -> str:
    """Return the level of the logger "acker"."""
    return logging.getLevelName(logging.getLogger("acker").getEffectiveLevel())
