"""Every exception that users can meet is a name of `acker`, and the published tree is the one of the classes."""

import ast
import re
from pathlib import Path

import acker
from acker import errors

ROOT = Path(__file__).resolve().parents[1]

# Exceptions that no user can catch, and why.
NOT_EXPORTED = {
    "ActionError": "the live page turns it into an answer",
    "SetupError": "the command line turns it into one sentence and exit code 4",
    "UsageError": "the command line turns it into one sentence and exit code 2",
    "_NoModuleError": "a UsageError",
    "_NotFirstError": "a RuntimeStateError that Dramatiq passes on",
}


def subclasses() -> dict[str, Path]:
    """Return the names of all exceptions that are defined in the package, and the files that define them."""
    bases: dict[str, tuple[Path, list[str]]] = {}
    for path in sorted((ROOT / "src/acker").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = path, [ast.unparse(base).rpartition(".")[2] for base in node.bases]
    found = {"AckerError"}
    while True:
        more = {name for name, (_, parents) in bases.items() if found & {*parents}} - found
        if not more:
            return {name: bases[name][0] for name in found}
        found |= more


def tree(of: type[BaseException] = errors.AckerError, indent: str = "") -> list[str]:
    """Return the exceptions below one, a line each, as the API page lists them."""
    builtin = [base.__name__ for base in of.__bases__ if base.__module__ == "builtins"]
    lines = [f"{indent}{of.__name__}" + (f" ({builtin[0]})" if builtin else "")]
    for child in sorted(of.__subclasses__(), key=lambda each: each.__name__):
        if child.__module__ == "acker.errors":
            lines += tree(child, indent + "    ")
    return lines


def test_every_exception_is_exported() -> None:
    found = subclasses()
    assert len(found) > 15
    assert {name for name in found if name not in acker.__all__} == set(NOT_EXPORTED)
    for name in found.keys() - NOT_EXPORTED.keys():
        assert found[name].name == "errors.py", f"{name} is defined in {found[name]}"
        assert getattr(acker, name) is getattr(errors, name)


class MuteError(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


def test_an_exception_without_a_text_has_one() -> None:
    assert errors.exception_text(MuteError()) == "MuteError: (no text: its __str__ raised ZeroDivisionError)"
    assert errors.exception_text(KeyError()) == "KeyError"
    assert errors.exception_text(OSError("no broker")) == "OSError: no broker"


def test_the_api_page_lists_the_tree() -> None:
    page = (ROOT / "docs/api/acker.md").read_text(encoding="utf-8")
    listed = re.search(r"^```text\n(AckerError.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert listed[1].splitlines() == tree()


def test_names_are_sorted_and_dir_is_short() -> None:
    assert acker.__all__ == sorted(acker.__all__, key=lambda name: (name.islower(), name))
    assert dir(acker) == sorted([*acker.__all__, "COMPLETION_SCHEMA", "MESSAGE_SCHEMA"])


def test_a_damaged_checkpoint_is_no_wrong_argument() -> None:
    assert not issubclass(acker.CheckpointError, (acker.ArgumentValueError, acker.ArgumentTypeError))
