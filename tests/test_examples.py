"""Every example in the docstrings of the core and in the documents runs and prints what it says."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import acker

DOCS = Path(__file__).parents[1] / "docs"
NATIVE_OR_COMMAND = {"_core", "__main__"}
CORE = sorted(
    f"acker.{module.name}"
    for module in pkgutil.iter_modules(acker.__path__)
    if not module.ispkg and module.name not in NATIVE_OR_COMMAND
)
WITH_EXAMPLES = {"acker.engine", "acker.protocol", "acker.reference", "acker.tupletree"}


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


@pytest.mark.repository
def test_documents():
    attempted = {}
    for path in sorted(DOCS.glob("**/*.md")):
        result = doctest.testfile(str(path), module_relative=False, encoding="utf-8")
        assert result.failed == 0, path
        attempted[path.name] = result.attempted
    assert attempted["tuple-trees.md"] > 20
