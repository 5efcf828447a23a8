"""Native ingest against other ways to do the same: ``python benchmarks/rivals``, with the options of the suite."""

import groupby
import hash_maps
import plain_table

from benchmarks.suite import main

CASES = [*plain_table.CASES, *hash_maps.CASES, *groupby.CASES]

if __name__ == "__main__":
    raise SystemExit(main(cases=CASES, program="python benchmarks/rivals"))
