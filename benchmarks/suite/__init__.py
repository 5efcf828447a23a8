"""The benchmarks behind `make bench`: `python -m benchmarks.suite`.

Each module answers one question. Every case checks its own work against the workload's generator, compares two sides on
the same load in alternating order, and reports ratios with their spread; see docs/benchmarks.md.
"""

from benchmarks.suite.suite import CASES, main

__all__ = ["CASES", "main"]
