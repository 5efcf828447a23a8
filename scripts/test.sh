#!/bin/sh
# Run all tests on all cores; beside them the linters, and then some tests on another release of Spark.
#
#   test.sh RELEASE [ARGUMENT...]     arguments are passed on to pytest, and leave out the other release
#
# What runs beside the tests writes to build/beside.log, which is shown at the end.
set -u

cd "$(dirname "$0")/.." || exit
release=$1
shift
log=build/beside.log
mkdir -p build

beside() {
    sh scripts/lint.sh
    linted=$?
    if [ "$all" = yes ]; then
        python scripts/spark_versions.py "$release" || return
    fi
    return $linted
}

all=no
[ $# -gt 0 ] || all=yes
echo "==> Linters$([ $all = no ] || echo ", and then some tests on Spark $release,") run beside the tests: $log"
beside >"$log" 2>&1 &
process=$!
# A Ctrl-C ends both.
trap 'kill $process 2>/dev/null; exit 130' INT TERM
# One process a core; tests/conftest.py says which tests stay together, and which begin first.
python -m pytest -n logical --dist loadgroup --no-loadscope-reorder "$@"
tested=$?
echo "==> Beside the tests"
wait $process
besides=$?
cat "$log"
[ $tested -eq 0 ] && [ $besides -eq 0 ]
