"""What is sampled for a flame graph, and how samples become one tree."""

from __future__ import annotations

import threading

import pytest

from acker.observe.calls import Line
from acker.ui import flames
from acker.ui.flames import Flames
from acker.ui.source import ActionError

MAIN, SLOW, FAST = (Line("/app/pay.py", line, name) for line, name in ((1, "main"), (20, "slow"), (30, "fast")))
LIBRARY = Line(threading.__file__, 363, "Condition.wait")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(flames, "SECS", 0.0)


def test_samples_become_one_tree_of_functions() -> None:
    looks = iter([[(MAIN, SLOW, LIBRARY)], [(MAIN, SLOW._replace(line=21)), (MAIN, FAST)]] + 58 * [[]])
    graph = Flames(lambda _: next(looks), lambda: ["pay"])
    assert graph.sample({"of": "pay"}) == "took 3 samples of pay in 0 s"
    (taken,) = graph.to_json()["taken"]
    slow = {
        "name": "slow (pay.py)",
        "value": 2,
        "children": [{"name": "Condition.wait (threading.py)", "value": 1, "children": []}],
    }
    fast = {"name": "fast (pay.py)", "value": 1, "children": []}
    main = {"name": "main (pay.py)", "value": 3, "children": [slow, fast]}
    assert taken["tree"] == {"name": "pay", "value": 3, "children": [main]}
    assert sorted(taken["top"]) == [("pay.py:20 in slow", 1), ("pay.py:21 in slow", 1), ("pay.py:30 in fast", 1)]


def test_the_last_three_are_kept_the_newest_first() -> None:
    graph = Flames(lambda name: [(MAIN._replace(function=name),)], lambda: list("abcd"))
    for name in "abcd":
        graph.sample({"of": name})
    assert [each["of"] for each in graph.to_json()["taken"]] == ["d", "c", "b"]


def test_what_cannot_be_sampled_is_refused_and_says_why() -> None:
    graph = Flames(lambda _: [(LIBRARY,)], lambda: ["orders"], lambda: "Bolts run elsewhere.")
    with pytest.raises(ActionError, match=r"one of orders\. Bolts run elsewhere\."):
        graph.sample({"of": "pay"})
    with pytest.raises(ActionError, match="no call of orders ran at any of 60 looks"):
        graph.sample({"of": "orders"})
    assert graph.to_json() == {"of": ["orders"], "note": "Bolts run elsewhere.", "taken": []}


def test_two_do_not_sample_at_a_time() -> None:
    def stacks_of(_: str):
        with pytest.raises(ActionError, match="sampled already"):
            graph.sample({"of": "pay"})
        return [(MAIN,)]

    graph = Flames(stacks_of, lambda: ["pay"])
    assert graph.sample({"of": "pay"}) == "took 60 samples of pay in 0 s"
