"""The examples in the docstrings of acker.topology run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import acker.topology

MODULES = sorted(f"acker.topology.{module.name}" for module in pkgutil.iter_modules(acker.topology.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.failed == 0
    assert (result.attempted > 0) == (">>> " in inspect.getsource(module))
