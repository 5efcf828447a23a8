"""Checks of the expressions that users give to steps which Spark's SQL runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  The name everyone uses.

from acker.errors import ArgumentTypeError, ArgumentValueError
from acker.spark.pipelines.hidden_columns import RESERVED
from acker.spark.pipelines.pipeline_plan import check_disjoint
from acker.spark.session_checks import is_classic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from acker.spark.pipelines.pipeline_plan import PipelinePlan

# Nodes of a plan that a step must not add: Spark would read rows there that a step before has dropped.
_NODES: Final = re.compile(r"^[ :+*()\d-]*\w*(?:Aggregate|Window|Generate|EvalPython)", re.MULTILINE)
# Functions, in the text of an expression, that differ when Spark computes a row again.
_RANDOM: Final = re.compile(
    r"\b(?:rand\w*|uniform|uuid|shuffle|monotonically_increasing_id|input_file_\w+|spark_partition_id)\(", re.IGNORECASE
)
# Names that Spark takes for a function where no column has them.
_FUNCTIONS: Final = re.compile(r"(?:current_\w+|localtimestamp|(?:session_)?user|grouping__id)", re.IGNORECASE)

_SEVERAL: Final = "an aggregate, a window or a generator, which reads or makes several rows"
_DIFFERS: Final = ", which differs when Spark computes a row again: compute it before, or in"

_HOWS: Final = ("inner", "left", "left_semi", "left_anti")
_TRACKED_HOWS: Final = (*_HOWS, "right", "outer")
# Of two of these, Spark compares the numbers themselves: a key equals at most one key of the other side.
_INTEGERS: Final = {"tinyint", "smallint", "int", "bigint"}


def expression_of(step: str, name: str, value: Any) -> Column:
    """Return an expression that is given as a column or as SQL text."""
    if isinstance(value, str):
        return F.expr(value)
    if isinstance(value, Column):
        return value
    raise ArgumentTypeError(f"{step}: {name}: expected a Column or the text of an expression, got {value!r}")


def text_of(expression: Column | str) -> str:
    """Return an expression as text, as the user wrote it or as PySpark shows it."""
    return expression if isinstance(expression, str) else str(expression).removeprefix("Column<'").removesuffix("'>")


def check_expressions(step: str, frame: DataFrame, columns: Sequence[Column]) -> StructType:
    """Return the schema of these expressions over the rows of a pipeline.

    Raises
    ------
    ArgumentValueError
        Spark would evaluate one of them over several rows, over rows that are dropped, or differently each time.
    """
    probe = frame.select(*columns)
    schema = probe.schema
    taken = [name for name in schema.names if name.lower() in RESERVED]
    if taken:
        raise ArgumentValueError(f"{step}: {taken[0]!r} is the pipeline's own column; name the columns that you want")
    if is_classic(frame.sparkSession):
        _check_plan(step, frame, probe)
    else:
        _check_text(step, frame, columns)
    return schema


def check_static_side(plan: PipelinePlan, other: object, on: Sequence[str], how: str) -> None:
    """Refuse what a pipeline cannot be joined with.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    """
    if how not in _HOWS:
        also = ", as the rows of a DataFrame have no trees" if how in _TRACKED_HOWS else ""
        raise ArgumentValueError(f"join: how: expected one of {', '.join(map(repr, _HOWS))}, got {how!r}{also}")
    if not isinstance(other, DataFrame):
        raise ArgumentTypeError(f"join: expected a DataFrame of PySpark or a Tracked, got {type(other).__name__}")
    if other.isStreaming:
        raise ArgumentValueError(
            "join: expected a batch DataFrame, got a streaming one, which a join would have to keep"
        )
    missing = [name for name in on if name not in other.columns]
    if missing:
        raise ArgumentValueError(f"join: other has no column {missing[0]!r}; it has {', '.join(other.columns)}")
    for name in on:
        kinds = [schema[name].dataType.simpleString() for schema in (plan.schema, other.schema)]
        if not _INTEGERS.issuperset(kinds):
            _check_key(name, *kinds)
    maps = [name for name, kind in other.dtypes if "map<" in kind]
    if maps and how in ("inner", "left"):
        raise ArgumentTypeError(
            f"join: column {maps[0]!r} of other is a map, which has no order, so matches would come in another order"
            " each time: leave it out, or take F.map_entries of it"
        )


def check_tracked_sides(left: PipelinePlan, right: PipelinePlan, on: Sequence[str], how: str) -> None:
    """Refuse two pipelines that cannot be joined.

    Raises
    ------
    ArgumentTypeError, ArgumentValueError
    """
    if how not in _TRACKED_HOWS:
        raise ArgumentValueError(f"join: how: expected one of {', '.join(map(repr, _TRACKED_HOWS))}, got {how!r}")
    check_disjoint([left, right])
    if left.is_streaming:
        raise ArgumentValueError(
            "join: expected pipelines on batch DataFrames, got streaming ones: a row that Spark's watermark drops would"
            " send no message. Put the rows of both into one stream and join `branches` of its `micro_batch`, join with"
            " a table, or use a topology, whose JoinBolt has windows"
        )
    for plan in (left, right):
        if not plan.unread:
            names = " and ".join(map(repr, plan.components))
            raise ArgumentValueError(f"join: the rows of {names} are results already: join before the sink")
    for name in on:
        if name not in right.schema.names:
            raise ArgumentValueError(f"join: other has no column {name!r}; it has {', '.join(right.schema.names)}")
        _check_key(name, *(plan.schema[name].dataType.simpleString() for plan in (left, right)))


def _check_key(name: str, one: str, two: str) -> None:
    """Refuse a key of two types: to Spark the int 7 equals both "7" and "07", which are two keys of one side."""
    if one != two:
        raise ArgumentTypeError(f"join: {name!r} is {one} on one side and {two} on the other: cast one of them")


def columns_read(
    frame: Any, users: Sequence[str], columns: dict[str, Column]
) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return which of the user's columns each expression reads, and its text."""
    texts = {name: text_of(column) for name, column in columns.items()}
    if not is_classic(frame.sparkSession):
        return {name: find_columns_read(frame, users, column) for name, column in columns.items()}, texts
    reads = {}
    for name, column in columns.items():
        expression = frame.select(column)._jdf.queryExecution().analyzed().expressions().apply(0)
        found = expression.references().toSeq()
        reads[name] = [found.apply(index).name() for index in range(found.size())]
    return reads, texts


def find_columns_read(frame: Any, users: Sequence[str], column: Column) -> list[str]:
    """Return the columns without which Spark cannot resolve an expression, as a client of Spark Connect can find them.

    Halves of the columns are left out, and halves of those without which it does not resolve.
    """

    def find(names: Sequence[str]) -> list[str]:
        try:
            _ = frame.drop(*names).select(column).schema
        except AnalysisException:
            half = len(names) // 2
            return [*find(names[:half]), *find(names[half:])] if half else [*names]
        text = str(column).lower()
        return [name for name in names if _FUNCTIONS.fullmatch(name) and name.lower() in text]

    return find(users)


def _check_plan(step: str, frame: Any, probe: Any) -> None:
    before, plan = (each._jdf.queryExecution().analyzed() for each in (frame, probe))
    if plan.nodeName() != "Project" or not plan.child().equals(before):
        raise _refuse(step, f"{_SEVERAL}: use explode,")
    expressions = plan.expressions()
    for index in range(expressions.size()):
        expression = expressions.apply(index)
        if 'expressions.PythonUDF"' in expression.toJSON():
            raise _refuse(
                step, f"a Python function ({expression.toString()}), which Spark calls for dropped rows too: use"
            )
        if not expression.deterministic():
            raise _refuse(step, f"{expression.toString()}{_DIFFERS}")


def _check_text(step: str, frame: Any, columns: Sequence[Column]) -> None:
    """Check physical plans; a client of Spark Connect has no other. Of several columns Spark may leave some out."""

    def count_nodes(probed: Any) -> int:
        return len(_NODES.findall(probed._explain_string(mode="simple")))

    for column in columns:
        text = text_of(column)
        if _RANDOM.search(text):
            raise _refuse(step, f"{text}{_DIFFERS}")
        try:
            is_several = count_nodes(frame.select(column)) > count_nodes(frame)
        except PySparkException:
            # Rows that the client sent are computed while Spark plans, if one alone is enough; one of them raises.
            continue
        if is_several:
            raise _refuse(step, f"{_SEVERAL}, or a Python function ({text}): use explode,")


def _refuse(step: str, found: str) -> ArgumentValueError:
    return ArgumentValueError(f"{step}: expected expressions of one row, got {found} a bolt")
