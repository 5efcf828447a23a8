"""A test that a class inherits is marked for that class alone."""

import re
from pathlib import Path

import pytest

from tests.marks import slow

pytestmark = pytest.mark.repository

TESTS = Path(__file__).resolve().parents[1]


class Base:
    def test(self):
        self.ran = True


def test_a_mark_for_a_subclass_leaves_the_base_class_alone():
    marked = slow(Base.test)
    assert [mark.name for mark in marked.pytestmark] == ["slow"] and marked.__name__ == "test"
    assert not hasattr(Base.test, "pytestmark")
    base = Base()
    marked(base)
    assert base.ran


def test_no_test_of_a_base_class_is_marked_itself():
    """`make test` would leave it out of each subclass, or not: that depends on which files are collected."""
    found = [
        f"{path.relative_to(TESTS)}: {call}"
        for path in TESTS.rglob("*.py")
        for call in re.findall(r"pytest\.mark\.\w+\(\s*[A-Z]\w*\.test_\w+", path.read_text(encoding="utf-8"))
    ]
    assert not found, "use tests.marks.slow"
