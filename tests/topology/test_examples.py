"""The examples in the docstrings of acker.topology run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import acker.topology

MODULES = sorted(f"acker.topology.{module.name}" for module in pkgutil.iter_modules(acker.topology.__path__))
WITH_EXAMPLES = {f"acker.topology.{name}" for name in ("definition", "dispatch", "drawing", "hashing", "tuples")}


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0
    assert (result.attempted > 0) == (name in WITH_EXAMPLES)
