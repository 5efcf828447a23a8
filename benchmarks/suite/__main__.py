"""The command `python -m benchmarks.suite`."""

from benchmarks.suite import main

if __name__ == "__main__":
    raise SystemExit(main(program="python -m benchmarks.suite"))
