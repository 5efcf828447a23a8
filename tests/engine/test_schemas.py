"""The table of columns agrees with what uses it."""

import acker
from acker import Completions, Kind, Message
from acker._engine.columns import Columns
from acker._engine.schemas import COMPLETION_DTYPES, MESSAGE_COLUMNS


def test_messages_have_the_columns_of_the_table() -> None:
    names = [column.name for column in MESSAGE_COLUMNS]
    assert names == list(Columns._fields) == list(Message._fields) == acker.MESSAGE_SCHEMA.names
    assert [str(field.type) for field in acker.MESSAGE_SCHEMA] == [str(column.dtype) for column in MESSAGE_COLUMNS]


def test_completions_have_the_columns_of_the_table() -> None:
    done = Completions.empty()
    assert {name: getattr(done, name).dtype for name in Completions.__slots__} == COMPLETION_DTYPES
    assert done.to_arrow().schema == acker.COMPLETION_SCHEMA
    assert acker.COMPLETION_SCHEMA.names == list(COMPLETION_DTYPES)


def test_the_table_knows_every_kind() -> None:
    kind = MESSAGE_COLUMNS[0]
    assert (kind.least, kind.most) == (min(Kind), max(Kind))
    assert kind.expected == f"a kind from {min(Kind):d} to {max(Kind):d}"
