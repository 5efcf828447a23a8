#!/bin/sh
# Run pytest with two processes a core, since most tests wait for servers, threads or the JVM: pytest.sh [ARGUMENT...]
#
# tests/conftest.py says which tests stay together, and which begin first.
set -u

processes=$((2 * $(python -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')))
exec python -m pytest -n $processes --dist loadgroup --no-loadscope-reorder "$@"
