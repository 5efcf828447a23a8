"""Schemas of the rows of a pipeline: parsed, checked, and turned into Arrow's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.pipelines.hidden_columns import (
    ALIVE,
    BLOCK,
    EVENT_MS,
    FAILED,
    FAILED_DDL,
    HIDDEN,
    ID,
    RESERVED,
    SHARD,
    SQL_HIDDEN,
    TASK,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from pyspark.sql import SparkSession

_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)


def parse_schema(schema: StructType | str) -> StructType:
    """Parse the text of a schema; check that it has columns, each with a name of its own."""
    if isinstance(schema, str):
        parsed = StructType.fromDDL(schema) if schema.strip() else StructType([])
    else:
        parsed = schema
    if not isinstance(parsed, StructType):
        raise ArgumentTypeError(f"schema: expected a StructType or its text, got {type(schema).__name__}")
    if not parsed.fields:
        raise ArgumentValueError("schema: expected at least one column")
    check_names(parsed.names)
    return parsed


def check_names(names: Iterable[str]) -> None:
    """Refuse a column with a reserved name, and two with one name."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in RESERVED:
            reserved = ", ".join(sorted(RESERVED))
            raise ArgumentValueError(f"column {name!r} is reserved; {reserved} are the pipeline's own")
        if name.lower() in seen:
            raise ArgumentValueError(f"column {name!r} is there twice")
        seen.add(name.lower())


def check_integer_column(schema: StructType, parameter: str, name: str) -> None:
    """Refuse a column that is missing or not of integers."""
    if name not in schema.names:
        raise ArgumentValueError(f"{parameter}: there is no column {name!r}; there are {', '.join(schema.names)}")
    found = schema[name].dataType
    if not isinstance(found, _INTEGERS):
        raise ArgumentTypeError(f"{parameter}: expected a column of integers, {name!r} is {found.simpleString()}")


def check_id_column(schema: StructType, parameter: str, name: str) -> str:
    """Refuse a column that is missing, or holds no message ids; return "bigint", "string" or "binary"."""
    found = schema[name].dataType if name in schema.names else None
    if isinstance(found, (StringType, BinaryType)):
        return "string" if isinstance(found, StringType) else "binary"
    if found is None or isinstance(found, _INTEGERS):
        check_integer_column(schema, parameter, name)
        return "bigint"
    raise ArgumentTypeError(
        f"{parameter}: expected a column of integers, strings or binaries, {name!r} is {found.simpleString()}"
    )


def make_nullable(schema: StructType) -> StructType:
    """Return the schema with nullable columns, as carriers have nulls there."""
    return StructType([StructField(entry.name, entry.dataType, True, entry.metadata) for entry in schema.fields])


def with_hidden_columns(schema: StructType) -> StructType:
    """Return the schema with the pipeline's own columns behind those of the user."""
    types = (BinaryType(), IntegerType(), BinaryType())
    hidden = [StructField(name, dtype) for name, dtype in zip(HIDDEN, types, strict=True)]
    return StructType([*schema.fields, *hidden])


def with_sql_columns(schema: StructType, ids: str, *, timed: bool) -> StructType:
    """Return the schema with the pipeline's own columns that SQL reads, with message ids of this type."""
    types = {ALIVE: "boolean", ID: ids, TASK: "int", FAILED: FAILED_DDL, SHARD: "int", BLOCK: "binary"}
    names = (*SQL_HIDDEN, EVENT_MS) if timed else SQL_HIDDEN
    types_of = {name: DataType.fromDDL(types.get(name, "bigint")) for name in names}
    return StructType([*schema.fields, *(StructField(name, dtype) for name, dtype in types_of.items())])


def arrow_schema_of(session: SparkSession, schema: StructType) -> pa.Schema:
    """Return the Arrow schema of rows in a session."""
    zone = str(session.conf.get("spark.sql.session.timeZone"))
    try:
        return to_arrow_schema(schema, timezone=zone)
    except TypeError:  # Before PySpark 4.1 the zone is always UTC.
        return to_arrow_schema(schema)
