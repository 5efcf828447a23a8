"""Options: defaults, ranges, aliases and errors."""

import difflib
from pathlib import Path

import pytest

from acker.topology import ConfError
from acker.topology.conf import ALIASES, INERT, OPTIONS, check, inert_options, resolve


def test_defaults():
    conf = resolve()
    assert set(conf) == set(OPTIONS)
    assert conf["topology.acker.tasks"] == 1
    assert conf["topology.acker.buckets"] == 3
    assert conf["topology.message.timeout.secs"] == 30
    assert conf["topology.enable.message.timeouts"] is True
    assert conf["topology.max.spout.pending"] == 128
    assert conf["topology.tick.tuple.freq.secs"] is None
    assert conf["topology.max.restarts"] == 5
    for name, option in OPTIONS.items():
        assert option.check(name, option.default) == option.default


def test_later_mappings_come_before_earlier_ones():
    conf = resolve({"topology.name": "a", "topology.debug": True}, None, {"topology.name": "b"})
    assert (conf["topology.name"], conf["topology.debug"]) == ("b", True)


def test_storms_names_mean_the_same_options():
    assert resolve({"topology.acker.executors": 0})["topology.acker.tasks"] == 0
    assert ALIASES and set(ALIASES.values()) <= set(OPTIONS)
    assert not set(ALIASES) & set(OPTIONS) and not INERT & set(OPTIONS) and not INERT & set(ALIASES)
    # The later mapping wins under either name.
    assert resolve({"topology.acker.tasks": 2}, {"topology.acker.executors": 3})["topology.acker.tasks"] == 3


def test_an_alias_beside_its_option_is_refused():
    with pytest.raises(
        ConfError, match=r"'topology.acker.executors' and 'topology.acker.tasks' are the same option; keep one of them"
    ):
        check({"topology.acker.tasks": 1, "topology.acker.executors": 1})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("topology.mesage.timeout.secs", "topology.message.timeout.secs"),
        ("topology.max.spout.pendng", "topology.max.spout.pending"),
        ("topology.ackers", "topology.acker"),
        ("max.spout.pending", "topology.max.spout.pending"),
        ("topology.mesage", "'topology.message.timeout.secs'"),
        ("topology.message.timeou", "'topology.message.timeout.secs'"),
        ("topology.max.spot", "'topology.max.spout.pending'"),
        ("topology.tick", "'topology.tick.tuple.freq.secs'"),
        ("topology.nam", "'topology.name'"),
        ("topology.acker.task", "'topology.acker.tasks'"),
        ("topology.worker", "topology.workers"),
        ("topology.wrkers", "topology.workers"),
        ("timeout", "'topology.message.timeout.secs'."),
        ("topology.timeout.secs", "'topology.message.timeout.secs'."),
        ("topology_message_timeout_secs", "'topology.message.timeout.secs'."),
        ("tick", "'topology.tick.tuple.freq.secs'."),
        ("topology.tick.secs", "'topology.tick.tuple.freq.secs'."),
        ("max_pending", "'topology.max.spout.pending'."),
        ("TOPOLOGY_DEBUG", "'topology.debug'."),
        ("state", "'topology.state.provider', which has no effect here."),
        ("", "'"),
        (5, "'"),
    ],
)
def test_an_unknown_option_is_an_error_that_names_the_nearest(name, near):
    with pytest.raises(ConfError) as caught:
        resolve({name: 1})
    assert str(caught.value).startswith(f"option {name!r} is unknown; the nearest is '")
    assert near in str(caught.value)
    assert "Your own options begin with 'user.'" in str(caught.value)


def test_options_of_the_users_own_pass():
    assert resolve({"user.kafka.hosts": ["a", "b"]})["user.kafka.hosts"] == ["a", "b"]


def test_options_without_effect_are_accepted_and_told():
    conf = {"topology.workers": 2, "topology.debug": True, "pystorm.log.level": "debug", "virtualenv_root": "venvs"}
    assert resolve(conf)["topology.workers"] == 2
    assert inert_options(conf) == ["pystorm.log.level", "topology.workers", "virtualenv_root"]
    assert inert_options({"topology.debug": True}) == []


WRONG = [
    ("topology.acker.tasks", -1, "an int from 0 to 1024"),
    ("topology.acker.tasks", 1.0, "an int"),
    ("topology.acker.tasks", True, "an int"),
    ("topology.acker.tasks", None, "an int"),
    ("topology.acker.executors", "1", "an int"),
    ("topology.acker.buckets", 1, "an int from 2 to 15"),
    ("topology.acker.high_water", 0, "an int from 1 to .* or None"),
    ("topology.message.timeout.secs", 0, "a number above 0"),
    ("topology.message.timeout.secs", -1, "a number above 0"),
    ("topology.message.timeout.secs", float("nan"), "a number above 0"),
    ("topology.message.timeout.secs", float("inf"), "a number above 0"),
    ("topology.message.timeout.secs", True, "a number above 0"),
    ("topology.message.timeout.secs", None, "a number above 0"),
    ("topology.message.timeout.secs", "30", "a number above 0"),
    ("topology.enable.message.timeouts", 1, "True or False"),
    ("topology.max.spout.pending", 0, "an int of at least 1 or None"),
    ("topology.tick.tuple.freq.secs", 0, "a number above 0 .* or None"),
    ("topology.executor.receive.buffer.size", 0, "an int of at least 1"),
    ("topology.trace.sample", 0, "an int of at least 1 or None"),
    ("topology.stats.sample.rate", 1.5, "a number from 0 to 1"),
    ("topology.drain.secs", -1, "a number from 0"),
    ("topology.max.restarts", -1, "an int of at least 0"),
    ("topology.no.restart", "no", "True or False"),
    ("topology.name", 5, "a str or None"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_a_wrong_value_names_option_value_and_what_is_expected(name, value, expected):
    with pytest.raises(ConfError, match=f"option '{name}': expected {expected}") as caught:
        resolve({name: value})
    assert str(caught.value).endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topology.acker.tasks", 0),
        ("topology.message.timeout.secs", 0.05),
        ("topology.message.timeout.secs", 30),
        ("topology.max.spout.pending", None),
        ("topology.drain.secs", 0),
        ("topology.stats.sample.rate", 1),
        ("topology.tick.tuple.freq.secs", 0.001),
    ],
)
def test_values_at_the_edge_are_accepted(name, value):
    assert resolve({name: value})[name] == value


def test_timeouts_may_be_off_only_where_nothing_waits_for_a_place():
    with pytest.raises(
        ConfError, match=r"'topology.enable.message.timeouts'.*'topology.max.spout.pending' is 128"
    ) as caught:
        resolve({"topology.enable.message.timeouts": False})
    assert "Set 'topology.max.spout.pending' to None, or leave timeouts on" in str(caught.value)
    conf = resolve({"topology.enable.message.timeouts": False}, {"topology.max.spout.pending": None})
    assert conf["topology.enable.message.timeouts"] is False


def test_every_option_says_what_it_means():
    for name, option in OPTIONS.items():
        assert option.meaning and option.expected, name
    # Names that are easily confused would make "the nearest" a poor guide.
    for name in OPTIONS:
        assert difflib.get_close_matches(name, list(OPTIONS), 1) == [name]


@pytest.mark.repository
def test_the_guide_lists_them_all():
    guide = (Path(__file__).parents[2] / "docs/topology-reference.md").read_text(encoding="utf-8")
    begin = guide.index("| `topology.")
    rows = guide[begin : guide.index("\n\n", begin)].splitlines()
    assert rows == [f"| `{name}` | {option.default} | {option.meaning} |" for name, option in OPTIONS.items()]
