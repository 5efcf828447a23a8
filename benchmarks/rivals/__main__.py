"""Native ingest against other ways to do the same: ``python benchmarks/rivals``, options as `acker bench`."""

import groupby
import plain_table

from acker.bench import main

if __name__ == "__main__":
    raise SystemExit(main(cases=[*plain_table.CASES, *groupby.CASES], program="python benchmarks/rivals"))
