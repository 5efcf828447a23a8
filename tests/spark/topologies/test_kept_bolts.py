"""Bolts that a worker keeps between micro-batches."""

from collections import Counter

import pytest

from acker.spark.topologies.kept_bolts import KeptBolts, contents_of
from acker.topology import Bolt


class Tagger(Bolt):
    def process(self, tup): ...


class Closing(Tagger):
    def close(self): ...


class Opening(Tagger):
    def activate(self): ...


def keep(bolt, change=lambda bolt: None):
    before = contents_of(bolt)
    change(bolt)
    return KeptBolts.keep(b"run", 1, bolt, before)


def test_a_bolt_that_process_leaves_alone_is_taken_once():
    bolt = Tagger()
    bolt.model = {"a": 1}
    assert keep(bolt) == (True, [])
    assert KeptBolts.take(b"run", 1) is bolt
    assert KeptBolts.take(b"run", 1) is None


def test_a_bolt_of_another_run_or_task_is_not_taken():
    bolt = Tagger()
    keep(bolt)
    assert KeptBolts.take(b"other", 1) is None and KeptBolts.take(b"run", 2) is None
    assert KeptBolts.take(b"run", 1) is bolt


def test_a_new_run_lets_go_of_the_bolts_of_the_last_one():
    keep(Tagger())
    KeptBolts.keep(b"next", 1, (bolt := Tagger()), contents_of(bolt))
    assert KeptBolts.take(b"run", 1) is None and KeptBolts.take(b"next", 1) is bolt


@pytest.mark.parametrize("kind", [Closing, Opening])
def test_a_bolt_that_begins_or_ends_with_a_micro_batch_is_not_kept(kind):
    assert keep(kind()) == (False, [])
    assert KeptBolts.take(b"run", 1) is None


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (0, lambda bolt: setattr(bolt, "seen", 1)),
        ([], lambda bolt: bolt.seen.append(1)),
        (Counter(a=1000), lambda bolt: bolt.seen.update(["a"])),  # the same keys, another value
        ({1, 2}, lambda bolt: bolt.seen.remove(1)),
        (None, lambda bolt: delattr(bolt, "seen")),
        ({"a": [1]}, lambda bolt: bolt.seen["a"].append(2)),  # a list in a dict
        ([{}], lambda bolt: bolt.seen[0].setdefault("a", {1})),
        ([[]], lambda bolt: bolt.seen[0].append(bolt.seen)),  # now it contains itself
    ],
)
def test_a_bolt_that_process_changes_is_not_kept_and_the_attribute_is_named(value, change):
    bolt = Tagger()
    bolt.seen = value
    assert keep(bolt, change) == (False, ["seen"])
    assert KeptBolts.take(b"run", 1) is None


def test_a_number_at_the_address_of_the_one_before_is_a_change():
    """CPython gives a new float the memory of one that is gone, so that both have the same `id`."""
    bolt = Tagger()
    bolt.seen = float("0.5")  # a literal would stay in memory

    def count(bolt):
        for _ in range(20):
            bolt.seen += 1.0

    assert keep(bolt, count) == (False, ["seen"])


def test_an_attribute_with_too_many_elements_counts_as_changed():
    bolt = Tagger()
    bolt.table = list(range(20_000))
    assert keep(bolt)[0] is False


def test_private_attributes_are_not_named():
    assert keep(Tagger(), lambda bolt: setattr(bolt, "_count", 1)) == (False, [])
