"""The columns of messages and completions: names, types and ranges, and Arrow schemas made on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

    MESSAGE_SCHEMA: pa.Schema
    COMPLETION_SCHEMA: pa.Schema


class MessageColumn(NamedTuple):
    """One column of messages: its name and type, the values it may hold, and how errors describe them."""

    name: str
    dtype: np.dtype[Any]
    least: int
    most: int
    expected: str


_INT64: Final = (np.dtype(np.int64), -(2**63), 2**63 - 1, "int64")

# In the order of the parameters of `Acker.ingest`.
MESSAGE_COLUMNS: Final = (
    MessageColumn("kind", np.dtype(np.int8), 0, 4, "a kind from 0 to 4"),
    MessageColumn("root_id", *_INT64),
    MessageColumn("value", *_INT64),
    MessageColumn("task_id", np.dtype(np.int32), 0, 2**31 - 1, "an int32 >= 0"),
    MessageColumn("message_id", *_INT64),
)

# In the order of the attributes of `Completions`.
COMPLETION_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "root_id": np.dtype(np.int64),
    "message_id": np.dtype(np.int64),
    "task_id": np.dtype(np.int32),
    "outcome": np.dtype(np.int8),
    "elapsed_ms": np.dtype(np.int64),
}


def _schemas() -> dict[str, pa.Schema]:
    # Here and not above: the core needs NumPy only, pyarrow is imported on first use.
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError("the schemas of acker need pyarrow: pip install 'acker[arrow]'") from error

    messages = [pa.field(column.name, pa.from_numpy_dtype(column.dtype)) for column in MESSAGE_COLUMNS]
    completions = [pa.field(name, pa.from_numpy_dtype(dtype)) for name, dtype in COMPLETION_DTYPES.items()]
    return {"MESSAGE_SCHEMA": pa.schema(messages), "COMPLETION_SCHEMA": pa.schema(completions)}


def __getattr__(name: str) -> Any:
    if name not in ("MESSAGE_SCHEMA", "COMPLETION_SCHEMA"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_schemas())
    return globals()[name]
