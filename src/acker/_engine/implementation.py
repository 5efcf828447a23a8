"""The choice between the compiled modules and, with ACKER_IMPLEMENTATION=python, those in plain Python.

The slow twin never runs by accident: if the compiled modules are missing, the import fails and says what to do. Modules
that need the native core import `core` from here; it is `acker._core`, or its twin `acker._engine.plain`.
"""

from __future__ import annotations

import importlib
import os
import platform
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from typing import TYPE_CHECKING, Any, Final

from acker.errors import ArgumentValueError

__all__ = ["NAME", "build_info", "compiled_only", "core", "kernel"]

_VARIABLE: Final = "ACKER_IMPLEMENTATION"
_REMEDY: Final = (
    "install a wheel of acker for this Python, ship an environment that has one with --archives, or set"
    f" {_VARIABLE}=python to run without it in plain Python, which is some hundred times slower"
)


def _wanted_name() -> str:
    """Return the implementation that the environment variable names.

    Raises
    ------
    ImportError   it names an unknown one.
    """
    asked = os.environ.get(_VARIABLE, "") or "native"
    if asked not in ("native", "python"):
        raise ImportError(f"{_VARIABLE}: expected native or python, got {asked!r}")
    return asked


def _load(name: str) -> Any:
    """Import an implementation; ImportError with one sentence if the compiled modules are missing."""
    if name == "python":
        warnings.warn(
            f"{_VARIABLE}=python: acker runs in plain Python, some hundred times slower than compiled",
            RuntimeWarning,
            stacklevel=4,  # the import of acker, seen from here
        )
        return importlib.import_module("acker._engine.plain")
    try:
        return importlib.import_module("acker._core")
    except ImportError as fault:
        folder = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120  pathlib takes long to import
        raise ImportError(_explain(folder, fault), name="acker._core", path=folder) from fault


def _explain(folder: str, fault: ImportError) -> str:
    """Return one sentence: what is missing, what was found instead, and what to do."""
    from pathlib import Path

    wanted = f"_core{EXTENSION_SUFFIXES[0]}"
    if not Path(folder).is_dir():
        found = f"the package lies in an archive ({folder}), and Python cannot load compiled modules from one"
    elif Path(folder, wanted).exists():
        found = f"it lies in {folder} but cannot be loaded ({fault})"
    else:
        others = sorted(path.name for kind in ("so", "pyd") for path in Path(folder).glob(f"_core*.{kind}"))
        found = f"{folder} holds {', '.join(others) or 'no compiled module at all'}"
    return f"acker's compiled module {wanted} for Python {platform.python_version()} is missing: {found}; {_REMEDY}"


NAME: Final = _wanted_name()

if TYPE_CHECKING:
    from acker import _core as core
else:
    core = _load(NAME)


def compiled_only(part: str) -> ImportError:
    """Return the error for a part of acker that has no twin in plain Python."""
    return ImportError(f"{part} exists compiled only, and {_VARIABLE}=python rules that out: unset it to use {part}")


def kernel() -> str:
    """Return the kernel of new ackers: the fastest of this machine, or the one that ACKER_KERNEL names."""
    available = core.kernels()
    asked = os.environ.get("ACKER_KERNEL", "")
    if asked and asked not in available:
        raise ArgumentValueError(f"ACKER_KERNEL: expected one of {', '.join(available)}, got {asked!r}")
    return asked or available[0]


def build_info() -> dict[str, str]:
    """Return which implementation runs, how it was built and which kernel it uses; for bug reports.

    The environment variable ``ACKER_KERNEL`` selects one of ``kernels``; it is read whenever an acker is made.

    Returns
    -------
    dict
        ``implementation`` is "native" or "python". ``abi`` names the interpreter that the module was compiled for, such
        as "cpython-313-x86_64-linux-gnu"; it is "none" for plain Python.

    Raises
    ------
    ArgumentValueError
        ``ACKER_KERNEL`` names a kernel that this machine does not have.
    """
    return {
        "implementation": NAME,
        "abi": "none" if NAME == "python" else str(core.__file__).split(".")[-2],
        "kernel": kernel(),
        "kernels": ", ".join(core.kernels()),
        "compiler": core.compiled_with(),
        "machine": platform.machine(),
    }
