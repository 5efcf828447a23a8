"""``python -m acker.bench``: the benchmarks, for where `acker` is not on the path."""

from acker.bench import main

if __name__ == "__main__":
    raise SystemExit(main(program="python -m acker.bench"))
