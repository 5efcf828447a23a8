"""Switches of the native build; everything else about the package stands in pyproject.toml."""

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

core = Extension(
    "acker._core",
    sources=["ext/acker/_core.pyx"],
    include_dirs=["ext/acker", numpy.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    extra_compile_args=["-std=c++17", "-O3", "-Wall", "-Wextra"],
    language="c++",
)

setup(ext_modules=cythonize([core], include_path=["ext/acker"], compiler_directives={"language_level": "3"}))
