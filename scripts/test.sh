#!/bin/sh
# Run tests on all cores; beside them the linters, or some tests on another release of Spark.
#
#   test.sh [ARGUMENT...]                  the tests of `make test`; beside them the linters
#   test.sh --slow RELEASE [ARGUMENT...]   the slow ones, but those of `make soak`; beside them some on that release of
#                                          Spark
#
# Arguments are passed on to pytest; with any, no other release is tried. What runs beside the tests writes to
# build/beside.log, which is shown at the end.
set -u

cd "$(dirname "$0")/.." || exit
which="not slow"
beside="sh scripts/lint.sh"
if [ "${1:-}" = --slow ]; then
    which="slow and not soak"
    beside="python scripts/spark_versions.py $2"
    shift 2
    [ $# -eq 0 ] || beside=true
fi
log=build/beside.log
mkdir -p build

echo "==> Beside the tests: $beside, which writes to $log"
$beside >"$log" 2>&1 &
process=$!
# A Ctrl-C ends both.
trap 'kill $process 2>/dev/null; exit 130' INT TERM
sh scripts/pytest.sh -m "$which" "$@"
tested=$?
echo "==> Beside the tests"
wait $process
besides=$?
cat "$log"
[ $tested -eq 0 ] && [ $besides -eq 0 ]
