"""The description of the machine, the versions and the commit that a report needs to mean anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from acker import _core

_PACKAGES: Final = ("acker", "numpy", "pyarrow", "pyspark", "pandas", "polars", "duckdb")
_COMPILER: Final = re.compile(rb"GCC: \([^)\0]*\) [\d.]+|(?:Apple )?clang version [\d.]+")
_CYTHON: Final = re.compile(rb"_cython_(\d+_\d+_[0-9a-z]+)")


def describe() -> dict[str, Any]:
    """Return what there is to know, as JSON-able values; None for what the system does not tell."""
    module = Path(_core.__file__).read_bytes()
    compiler, cython = _COMPILER.search(module), _CYTHON.search(module)
    return {
        "machine": {
            "processor": _processor(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "cache_bytes": _caches(),
            "memory_bytes": _memory_bytes(),
            "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        },
        "system": {
            "kernel": f"{platform.system()} {platform.release()}",
            "transparent_hugepages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        },
        "versions": {
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "compiler": compiler.group().decode() if compiler else None,
            "cython": cython.group(1).decode().replace("_", ".") if cython else None,
            **{name: _version(name) for name in _PACKAGES},
        },
        "commit": commit(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def commit() -> str | None:
    """Return the commit of the checkout that this package is imported from, `+` when the sources differ from it."""
    folder = Path(__file__).parent
    try:
        # The folder may be inside some other repository (a virtual environment in one), so this file must be tracked.
        _git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
        changed = _git(folder, "status", "--porcelain", "--", ":/src", ":/ext", ":/setup.py")
        return _git(folder, "rev-parse", "--short=12", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _processor() -> str | None:
    if sys.platform == "darwin":
        done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, check=False, text=True)
        return done.stdout.strip() or None
    cpus = _read("/proc/cpuinfo") or ""
    names = re.search(r"^model name\s*:\s*(.+)$", cpus, re.MULTILINE)
    numbers = re.search(r"^cpu family\s*:\s*(\d+)\s+model\s*:\s*(\d+)", cpus, re.MULTILINE)
    if names is None:
        return platform.processor() or None
    return names.group(1) + (f" (family {numbers.group(1)}, model {numbers.group(2)})" if numbers else "")


def _caches() -> dict[str, str]:
    """Return the sizes of the first processor's caches, by level."""
    found = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(str(folder / name)) for name in ("level", "type", "size"))
        if kind != "Instruction" and level and size:
            found[f"L{level}"] = size
    return found


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
