"""Groupings: their names, arguments and texts."""

import pytest

from acker.topology import Grouping, TopologyError


@pytest.mark.parametrize(
    ("lower", "upper", "kind"),
    [
        (Grouping.shuffle, Grouping.SHUFFLE, "shuffle"),
        (Grouping.all, Grouping.ALL, "all"),
        (Grouping.global_, Grouping.GLOBAL, "global"),
        (Grouping.direct, Grouping.DIRECT, "direct"),
        (Grouping.none, Grouping.NONE, "none"),
        (Grouping.local_or_shuffle, Grouping.LOCAL_OR_SHUFFLE, "local_or_shuffle"),
    ],
)
def test_ready_groupings_have_two_names_and_may_be_called(lower, upper, kind):
    assert lower is upper is lower()
    assert (lower.kind, str(lower)) == (kind, kind)


def test_groupings_with_arguments():
    def first(values, tasks):
        return tasks[:1]

    assert Grouping.fields("a", "b") == Grouping.fields(["a", "b"]) == Grouping("fields", ("a", "b"))
    assert str(Grouping.fields("a", "b")) == "fields(a, b)"
    assert Grouping.custom(first).fn is first
    assert str(Grouping.custom(first)) == "custom(first)"
    with pytest.raises(TopologyError, match=r"grouping: expected one of shuffle, fields, .*, got 'shufle'"):
        Grouping("shufle")


# --- stable_hash ------------------------------------------------------------------------------------------------------
