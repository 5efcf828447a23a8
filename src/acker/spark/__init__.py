"""The acker on Spark: completions of DataFrames and files of messages, and tracked pipelines.

Needs pyspark and pyarrow (``pip install acker[spark]``); nothing else of the package imports them.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

_missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
if _missing:
    raise ImportError(f"acker.spark needs {' and '.join(_missing)}: pip install acker[spark]")

from acker.spark.aggregate import completions  # noqa: E402  After the check, which says what is missing.
from acker.spark.blocks import completions_from_blocks  # noqa: E402
from acker.spark.files import completions_from_files  # noqa: E402
from acker.spark.pipelines.user_functions import Outputs  # noqa: E402

if TYPE_CHECKING:
    from acker.spark.pipelines.tracked import Tracked, completions_of, spout
    from acker.spark.shipping import ship
    from acker.spark.streams.listener import AckerListener, batch_report, skipped_files
    from acker.spark.streams.sinks import for_each_completion

__all__ = [
    "AckerListener",
    "Outputs",
    "Tracked",
    "batch_report",
    "completions",
    "completions_from_blocks",
    "completions_from_files",
    "completions_of",
    "for_each_completion",
    "ship",
    "skipped_files",
    "spout",
]


_LAZY = {
    "AckerListener": "streams.listener",
    "Tracked": "pipelines.tracked",
    "batch_report": "streams.listener",
    "completions_of": "pipelines.tracked",
    "for_each_completion": "streams.sinks",
    "ship": "shipping",
    "skipped_files": "streams.listener",
    "spout": "pipelines.tracked",
}


def __getattr__(name: str) -> Any:
    # Workers import this package too; what only drivers need costs them nothing.
    if name in _LAZY:
        return getattr(import_module(f"acker.spark.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'acker.spark' has no attribute {name!r}")
