"""Tuples: fields by name, by position and as attributes, ids, ticks."""

import copy

import pytest

from acker.topology import Tuple, is_tick
from acker.topology.tuples import TupleSource, tuple_type


def make(values=("storm", 3), fields=("word", "count"), ids=None):
    source = TupleSource("split", "default", 4, fields)
    return source.tuple_type(source.make_values(values), source, ids)


def test_a_field_is_read_by_name_by_position_and_as_an_attribute():
    tup = make()
    assert (tup["word"], tup[0], tup.word) == ("storm", "storm", "storm")
    assert (tup["count"], tup[1], tup[-1], tup.count) == (3, 3, 3, 3)
    assert (tup[0:1], len(tup), list(tup)) == (("storm",), 2, ["storm", 3])
    assert isinstance(tup, Tuple)


def test_it_tells_where_it_comes_from():
    tup = make()
    assert (tup.component, tup.stream, tup.task, tup.fields) == ("split", "default", 4, ("word", "count"))


def test_values_are_a_named_tuple_as_in_streamparse():
    tup = make(["storm", 3])
    assert tup.values == ("storm", 3)
    assert (tup.values.word, tup.values.count) == ("storm", 3)
    assert make(fields=("def", "_x")).values == ("storm", 3)  # names that a named tuple refuses


@pytest.mark.parametrize(("ids", "text"), [(None, ""), ({}, ""), ({7: 8}, "7:8"), ({-1: 8, 7: -9}, "-1:8 7:-9")])
def test_id_holds_one_encoded_id_a_tree(ids, text):
    assert make(ids=ids).id == text


def test_names_of_tuple_itself_are_reachable_by_subscript_only():
    names = ("values", "component", "id", "task", "stream", "fields", "__len__", "_owner")
    tup = make(range(8), names)
    assert [tup[name] for name in names] == list(range(8))
    assert (tup.component, tup.task, len(tup), tup._owner) == ("split", 4, 8, None)


def test_a_name_that_is_no_identifier_is_reachable_by_subscript():
    assert make((1,), ("user-id",))["user-id"] == 1


def test_an_unknown_field_is_named_with_those_that_there_are():
    with pytest.raises(KeyError, match=r"'wrod' is no field of stream 'default' of 'split'.*'word', 'count'"):
        make()["wrod"]
    text = "a tuple of stream 'default' of 'split' has no field 'wrod'; did you mean 'word'"
    with pytest.raises(AttributeError, match=text):
        _ = make().wrod
    with pytest.raises(AttributeError, match="values have no field 'wrod'; did you mean 'word'"):
        _ = make().values.wrod
    with pytest.raises(
        IndexError, match=r"\[2\] of a tuple of stream 'default' of 'split', which has 2 values: word, count"
    ):
        make()[2]
    assert not hasattr(make(), "wrod") and getattr(make(), "wrod", 5) == 5


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_reads_as_its_tuple_and_is_nobodys(duplicate):
    tup = make()
    tup._owner = object()
    again = duplicate(tup)
    assert (again.word, again.values, again.component, again.id) == (tup.word, tup.values, tup.component, tup.id)
    assert again != tup and again._owner is None


def test_a_tuple_without_a_source_says_what_it_lacks():
    with pytest.raises(AttributeError):
        _ = Tuple.__new__(Tuple).wrod


def test_tuples_compare_by_identity_and_are_true():
    tup, other = make(), make()
    assert tup == tup and tup != other and len({tup, other}) == 2
    assert make((), ())  # also without values


def test_repr_tells_everything():
    text = repr(make(ids={7: 8}))
    assert text == "Tuple(('storm', 3), component='split', stream='default', task=4, id='7:8')"


def test_the_same_fields_share_a_type():
    assert tuple_type(("word",)) is tuple_type(("word",))
    assert tuple_type(("word",)) is not tuple_type(("line",))


def test_a_tuple_has_no_dict():
    with pytest.raises(AttributeError):
        make().extra = 1


@pytest.mark.parametrize(
    ("component", "stream", "tick"),
    [("__system", "__tick", True), ("__system", "default", False), ("words", "__tick", False)],
)
def test_is_tick(component, stream, tick):
    source = TupleSource(component, stream, -1)
    assert is_tick(source.tuple_type((), source, None)) is tick
