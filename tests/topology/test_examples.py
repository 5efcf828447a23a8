"""The examples in the docstrings of acker.topology run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import acker.topology

WITH_EXAMPLES = {
    f"acker.topology.{name}" for name in ("column_hash", "definition", "dispatch", "drawing", "hashing", "tuples")
}


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.failed == 0
    assert (result.attempted > 0) == (">>> " in inspect.getsource(module))
