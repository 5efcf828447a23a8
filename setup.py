"""Switches of the native build; everything else about the package stands in pyproject.toml.

Environment variables, read when the extension is compiled:

ACKER_NATIVE=1       compile for this machine's processor (-march=native). Never for a wheel that leaves the machine.
ACKER_TESTING=1      with the functions that only tests need. Never for a wheel; scripts/wheel_checks.py looks for them.
ACKER_DEBUG=1        -O0, debug information, and the asserts of the native core.
ACKER_SANITIZE=LIST  for example address,undefined: passed to -fsanitize. The runtime has to be preloaded into Python.
CXX, CXXFLAGS        as everywhere.
"""

import os
import sys
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup


def enabled(name: str) -> bool:
    """Return whether the switch is on; a value that is neither yes nor no stops the build."""
    value = os.environ.get(name, "0").lower()
    if value not in {"", "0", "1", "no", "yes"}:
        raise SystemExit(f"{name}={value}: expected 0 or 1")
    return value in {"1", "yes"}


def compile_args(*, msvc: bool, debug: bool, native: bool, sanitize: str) -> list[str]:
    """Return the compiler's arguments for the given switches."""
    if msvc:
        if native or sanitize:
            raise SystemExit("ACKER_NATIVE and ACKER_SANITIZE are not supported with MSVC")
        return ["/std:c++17", "/EHsc", "/W3", *(["/Od", "/Zi"] if debug else ["/O2"])]
    args = ["-std=c++17", "-Wall", "-Wextra", "-fvisibility=hidden", "-pthread"]
    # Python's own flags hold a -g, which makes the module five times as large.
    args += ["-O0", "-g"] if debug else ["-O3", "-g0"]
    if native:
        args.append("-march=native")
    if sanitize:
        args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all", "-g"]
    return args


def link_args(*, sanitize: str) -> list[str]:
    """Return the linker's arguments: older C libraries on Linux keep threads in a library of their own."""
    return [*(["-pthread"] if sys.platform == "linux" else []), *([f"-fsanitize={sanitize}"] if sanitize else [])]


debug, testing, sanitize = enabled("ACKER_DEBUG"), enabled("ACKER_TESTING"), os.environ.get("ACKER_SANITIZE", "")
macros: list[tuple[str, str | None]] = [("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")]
if testing:
    macros.append(("ACKER_TESTING", "1"))


def extension(name: str, source: str) -> Extension:
    """Return the extension module acker.<name>, made of ext/acker/<source>.pyx."""
    kinds = ("h", "pxd", "pxi", "pyx")
    return Extension(
        f"acker.{name}",
        sources=[f"ext/acker/{source}.pyx"],
        depends=sorted(path.as_posix() for kind in kinds for path in Path("ext/acker").glob(f"*.{kind}")),
        include_dirs=["ext/acker", numpy.get_include()],
        define_macros=[*macros, ("ACKER_DEBUG", "1")] if debug else [*macros, ("NDEBUG", None)],
        undef_macros=["NDEBUG"] if debug else [],  # Python's own flags may define it
        extra_compile_args=compile_args(
            msvc=sys.platform == "win32", debug=debug, native=enabled("ACKER_NATIVE"), sanitize=sanitize
        ),
        extra_link_args=link_args(sanitize=sanitize),
        language="c++",
    )


setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        [
            extension("_core", "tests/_core_testing" if testing else "_core"),
            extension("_flow", "_flow"),
            extension("_handles", "_handles"),
        ],
        include_path=["ext/acker"],
        compiler_directives={"language_level": "3", "embedsignature": True},
    ),
)
