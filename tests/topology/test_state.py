"""KeyValueState: a dict whose changes are known, compared with a dict and a log of what was done."""

import copy
import pickle

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from acker.topology import KeyValueState

KEYS = st.sampled_from(["a", "b", "c", 0, (1, "x"), None])
FIXED = st.sampled_from([0, -1, 2**70, 1.5, "text", b"bytes", None, True, (1, "a", (None,))])
VALUES = FIXED | st.builds(list, st.lists(st.integers(), max_size=2)) | st.builds(lambda: ([],))


def is_fixed(value):
    if isinstance(value, tuple):
        return all(map(is_fixed, value))
    return not isinstance(value, list)


class StateMachine(RuleBasedStateMachine):
    """The state, a dict, and the keys that may have changed."""

    def __init__(self):
        super().__init__()
        self.state = KeyValueState()
        self.model = {}
        self.changed = set()

    def read(self, key):
        if key in self.model and not is_fixed(self.model[key]):
            self.changed.add(key)

    @rule(key=KEYS, value=VALUES)
    def set_value(self, key, value):
        self.state[key] = self.model[key] = value
        self.changed.add(key)

    @rule(key=KEYS, value=VALUES)
    def put(self, key, value):
        self.state.put(key, value)
        self.model[key] = value
        self.changed.add(key)

    @rule(key=KEYS)
    def get(self, key):
        assert self.state.get(key, "none") == self.model.get(key, "none")
        assert (key in self.state) == (key in self.model)
        self.read(key)

    @rule(key=KEYS)
    def get_item(self, key):
        if key in self.model:
            assert self.state[key] == self.model[key]
        else:
            with pytest.raises(KeyError) as raised:
                self.state[key]
            assert raised.value.args == (key,)
        self.read(key)

    @rule(key=KEYS)
    def peek(self, key):
        assert self.state.peek(key, 7) == self.model.get(key, 7)

    @rule(key=KEYS)
    def delete_item(self, key):
        if key in self.model:
            del self.state[key], self.model[key]
            self.changed.add(key)
        else:
            with pytest.raises(KeyError):
                del self.state[key]

    @rule(key=KEYS)
    def delete(self, key):
        if key in self.model:
            self.changed.add(key)
        assert self.state.delete(key) == self.model.pop(key, None)

    @rule(key=KEYS)
    def pop(self, key):
        if key in self.model:
            self.changed.add(key)
            assert self.state.pop(key) == self.model.pop(key)
        else:
            with pytest.raises(KeyError):
                self.state.pop(key)
        assert self.state.pop("missing", 3) == 3

    @rule()
    def pop_item(self):
        if self.model:
            key, value = self.model.popitem()
            assert self.state.popitem() == (key, value)
            self.changed.add(key)
        else:
            with pytest.raises(KeyError):
                self.state.popitem()

    @rule(key=KEYS, value=VALUES)
    def set_default(self, key, value):
        if key not in self.model:
            self.changed.add(key)
        assert self.state.setdefault(key, value) == self.model.setdefault(key, value)
        self.read(key)

    @rule(values=st.dictionaries(KEYS, VALUES, max_size=3), in_place=st.booleans())
    def update(self, values, in_place):
        if in_place:
            self.state |= values
        else:
            self.state.update(values)
        self.model.update(values)
        self.changed.update(values)

    @rule()
    def clear(self):
        self.changed.update(self.model)
        self.state.clear()
        self.model.clear()

    @rule(how=st.sampled_from(["items", "values", "copy"]))
    def read_all(self, how):
        if how == "items":
            assert list(self.state.items()) == list(self.model.items())
        elif how == "values":
            assert list(self.state.values()) == list(self.model.values())
        else:
            assert self.state.copy() == self.model and type(self.state.copy()) is dict
        for key in self.model:
            self.read(key)

    @rule()
    def take(self):
        taken = self.state.take_changes()
        assert taken.values == {key: self.model[key] for key in self.changed if key in self.model}
        assert taken.removed == {key for key in self.changed if key not in self.model}
        self.changed = set()
        assert self.state.changes() == ({}, set())

    @rule(values=st.dictionaries(KEYS, VALUES, max_size=3))
    def restore(self, values):
        self.state.restore(values)
        self.model = dict(values)
        self.changed = set()

    @invariant()
    def same(self):
        assert self.state.changed == self.changed
        assert self.state.snapshot() == self.model and type(self.state.snapshot()) is dict
        assert list(self.state) == list(self.model) and len(self.state) == len(self.model)


StateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestState = StateMachine.TestCase


def test_the_changes_of_each_round_make_the_same_state_elsewhere():
    state, elsewhere = KeyValueState({"old": 1, "kept": [1]}), {"old": 1, "kept": [1]}
    rounds = [
        lambda: (state.__setitem__("new", 1), state.pop("old")),
        lambda: state["kept"].append(2),
        lambda: state.setdefault("list", []).append(3),
        lambda: [value.append(4) for value in state.values() if isinstance(value, list)],
        state.clear,
    ]
    for change in rounds:
        change()
        values, removed = pickle.loads(pickle.dumps(state.take_changes()))
        elsewhere.update(values)
        for key in removed:
            elsewhere.pop(key, None)
        assert elsewhere == state
    assert not elsewhere


def test_reads_of_what_cannot_change_are_no_changes():
    state = KeyValueState({"count": 1, "name": "x", "pair": (1, ("y", None)), "nothing": None})
    for key in state:
        assert state[key] == state.get(key) == state.peek(key)
    assert list(state.items()) and list(state.values()) and state.copy()
    assert state.changes() == ({}, set())


@pytest.mark.parametrize(
    "value",
    [[], {}, set(), bytearray(), ([],), (1, (2, {})), object()],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value),
)
def test_a_read_of_what_can_change_is_a_change_and_a_peek_is_none(value):
    state = KeyValueState({"it": value})
    assert state.peek("it") is value
    assert not state.changes().values
    assert state["it"] is value
    assert state.take_changes() == ({"it": value}, set())
    assert state.get("it") is value
    assert state.take_changes() == ({"it": value}, set())


def test_a_value_that_is_nested_too_deep_or_in_itself_counts_as_one_that_can_change():
    deep = ()
    for _ in range(100_000):
        deep = (deep,)
    state = KeyValueState({"deep": deep})
    assert state["deep"] is deep
    assert "deep" in state.changes().values


def test_without_a_record_nothing_is_noted():
    state = KeyValueState({"a": []}, records=False)
    state["b"] = state["a"]
    del state["a"]
    state.update(c=1)
    state |= {"d": 2}
    state.pop("d")
    list(state.items())
    assert state.setdefault("e", 5) == 5 and state.popitem() == ("e", 5)
    assert state.changed is None
    assert state.take_changes() == ({}, set())
    state.clear()
    state.restore({"z": 1})
    assert state == {"z": 1}


def test_unhashable_keys_are_refused_and_change_nothing():
    state = KeyValueState({"a": 1})
    for act in (lambda: state.__setitem__([], 1), lambda: state.get([]), lambda: state[[]], lambda: state.pop([])):
        with pytest.raises(TypeError, match="unhashable"):
            act()
    with pytest.raises(TypeError):
        state.update(1)
    assert state == {"a": 1} and not state.changed


def test_copies_and_pickles_have_the_content():
    state = KeyValueState({"a": [1]})
    for other in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert type(other) is KeyValueState and other == state and not other.changed
    assert repr(state) == "{'a': [1]}"


class Replaces:
    """A key that, when it is compared, replaces the set of what changed."""

    def __init__(self, state):
        self.state = state

    def __hash__(self):
        return 1

    def __eq__(self, other):
        self.state.changed = {object() for _ in range(1_000)}
        return NotImplemented


@pytest.mark.parametrize(
    "act",
    [
        lambda state, key: state[key],
        lambda state, key: state.get(key),
        lambda state, key: state.__setitem__(key, []),
        lambda state, key: state.__delitem__(key),
        lambda state, key: state.record_read(),
    ],
    ids=["getitem", "get", "setitem", "delitem", "record_read"],
)
def test_a_key_that_replaces_what_changed_harms_no_memory(act):
    for _ in range(20):
        state = KeyValueState()
        kept, other = Replaces(state), Replaces(state)
        dict.__setitem__(state, kept, [])
        # Another key with the same hash, so that the set compares the two.
        state.changed = {other}
        act(state, kept)
        # The new set may lie where the old one lay: what is added to freed memory shows there.
        assert len(state.changed) == 1_000
