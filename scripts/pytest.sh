#!/bin/sh
# Run pytest with two processes a core and one more, since most tests wait for servers, threads or the JVM, and the long
# groups of tests begin together: pytest.sh [ARGUMENT...]
#
# tests/conftest.py says which tests stay together, and which begin first.
set -u

cores=$(python -c "import os; print(len(getattr(os, 'sched_getaffinity', lambda _: range(os.cpu_count() or 1))(0)))")
exec python -m pytest -n $((2 * cores + 1)) --dist loadgroup --no-loadscope-reorder "$@"
