"""Every example in the docstrings of the core runs and prints what it says."""

import doctest
import importlib
import pkgutil

import pytest

import acker

NATIVE_OR_COMMAND = {"_core", "__main__"}
CORE = sorted(
    f"{package.__name__}.{module.name}"
    for package in (acker, acker._engine)
    for module in pkgutil.iter_modules(package.__path__)
    if not module.ispkg and module.name not in NATIVE_OR_COMMAND
)
WITH_EXAMPLES = {"acker._engine.acker", "acker._engine.protocol", "acker._engine.reference", "acker._engine.tuple_tree"}


@pytest.mark.parametrize("name", CORE)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples():
    """A runner that finds nothing would pass."""
    found = {
        name
        for name in CORE
        if any(test.examples for test in doctest.DocTestFinder().find(importlib.import_module(name)))
    }
    assert found >= WITH_EXAMPLES
