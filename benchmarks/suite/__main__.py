"""``python -m benchmarks.suite``: the benchmarks, for where `acker` is not on the path."""

from benchmarks.suite import main

if __name__ == "__main__":
    raise SystemExit(main(program="python -m benchmarks.suite"))
