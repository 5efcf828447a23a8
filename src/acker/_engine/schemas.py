"""Arrow schemas of messages and completions, made when first asked for, so that acker itself needs no pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    MESSAGE_SCHEMA: pa.Schema
    COMPLETION_SCHEMA: pa.Schema


def _schemas() -> dict[str, pa.Schema]:
    # Here and not above: the core needs NumPy only, pyarrow is imported on first use.
    try:
        import pyarrow as pa
    except ImportError as fault:
        raise ImportError("the schemas of acker need pyarrow: pip install 'acker[arrow]'") from fault

    message = pa.schema(
        [
            pa.field("kind", pa.int8()),
            pa.field("root_id", pa.int64()),
            pa.field("value", pa.int64()),
            pa.field("task_id", pa.int32()),
            pa.field("message_id", pa.int64()),
        ]
    )
    completion = pa.schema(
        [
            pa.field("root_id", pa.int64()),
            pa.field("message_id", pa.int64()),
            pa.field("task_id", pa.int32()),
            pa.field("outcome", pa.int8()),
            pa.field("elapsed_ms", pa.int64()),
        ]
    )
    return {"MESSAGE_SCHEMA": message, "COMPLETION_SCHEMA": completion}


def __getattr__(name: str) -> Any:
    if name not in ("MESSAGE_SCHEMA", "COMPLETION_SCHEMA"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals().update(_schemas())
    return globals()[name]
