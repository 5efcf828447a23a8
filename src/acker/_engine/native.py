"""The native core as `core`, or an ImportError that says why it is missing and what to do."""

from __future__ import annotations

import os
import platform
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Final

from acker.errors import ArgumentValueError

__all__ = ["build_info", "core", "kernel"]

_REMEDY: Final = (
    "install a wheel of acker for this Python (docs/install.md), or send one to Spark's executors with"
    " acker.spark.ship(spark) (docs/shipping.md)"
)


def _explain(error: ImportError) -> str:
    """Return one sentence: what is missing, what was found instead, and what to do."""
    from pathlib import Path  # takes long to import

    folder, wanted = Path(__file__).parents[1], f"_core{EXTENSION_SUFFIXES[0]}"
    if not folder.is_dir():
        found = f"the package lies in an archive ({folder}), and Python cannot load compiled modules from one"
    elif (folder / wanted).exists():
        found = f"it lies in {folder} but cannot be loaded ({error})"
    else:
        others = sorted(path.name for kind in ("so", "pyd") for path in folder.glob(f"_core*.{kind}"))
        found = f"{folder} holds {', '.join(others) or 'no compiled module at all'}"
    return f"acker's compiled module {wanted} for Python {platform.python_version()} is missing: {found}; {_REMEDY}"


try:
    import acker._core as core
except ImportError as error:
    raise ImportError(_explain(error), name="acker._core") from error


def kernel() -> str:
    """Return the kernel of new ackers: the fastest of this machine, or the one that ACKER_KERNEL names."""
    available = core.kernels()
    wanted = os.environ.get("ACKER_KERNEL", "")
    if wanted and wanted not in available:
        raise ArgumentValueError(f"ACKER_KERNEL: expected one of {', '.join(available)}, got {wanted!r}")
    return wanted or available[0]


def build_info() -> dict[str, str]:
    """Return how the native core was built and which kernel it uses; for bug reports.

    The environment variable ``ACKER_KERNEL`` selects one of ``kernels``; it is read whenever an acker is made.

    Returns
    -------
    dict
        ``abi`` names the interpreter that the module was compiled for, such as "cpython-313-x86_64-linux-gnu".

    Raises
    ------
    ArgumentValueError
        ``ACKER_KERNEL`` names a kernel that this machine does not have.
    """
    return {
        "abi": str(core.__file__).split(".")[-2],
        "kernel": kernel(),
        "kernels": ", ".join(core.kernels()),
        "compiler": core.compiled_with(),
        "machine": platform.machine(),
    }
