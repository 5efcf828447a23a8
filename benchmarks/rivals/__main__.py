"""Native ingest against other ways to do the same: ``python benchmarks/rivals``, with the options of the suite."""

import groupby
import plain_table

from benchmarks.suite import main

if __name__ == "__main__":
    raise SystemExit(main(cases=[*plain_table.CASES, *groupby.CASES], program="python benchmarks/rivals"))
