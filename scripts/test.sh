#!/bin/sh
# Run tests on all cores; beside them linters, or types and some tests on another release of Spark.
#
#   test.sh [ARGUMENT...]                  the tests of `make test`; beside them the quick linters
#   test.sh --slow RELEASE [ARGUMENT...]   the slow ones, but those of `make soak`; beside them the types, and some
#                                          tests on that release of Spark
#
# Arguments are passed on to pytest; with any, the slow tests run alone. What runs beside the tests writes to files in
# build, which are shown at the end.
set -u

cd "$(dirname "$0")/.." || exit
mkdir -p build
processes=""
logs=""

# beside NAME COMMAND...: run a command beside the tests.
beside() {
    log=build/$1.log
    shift
    echo "==> Beside the tests: $*, which writes to $log"
    "$@" >"$log" 2>&1 &
    processes="$processes $!"
    logs="$logs $log"
}

if [ "${1:-}" = --slow ]; then
    which="slow and not soak"
    release=$2
    shift 2
    if [ $# -eq 0 ]; then
        beside types sh scripts/lint.sh types
        beside "spark-$release" python scripts/spark_versions.py "$release"
    fi
else
    which="not slow"
    beside lint sh scripts/lint.sh style
fi
# A Ctrl-C ends all.
# shellcheck disable=SC2064,SC2086 # now, and a list
trap "kill $processes 2>/dev/null; exit 130" INT TERM
failed=0
sh scripts/pytest.sh -m "$which" "$@" || failed=1
echo "==> Beside the tests"
for process in $processes; do
    wait "$process" || failed=1
done
# shellcheck disable=SC2086 # a list
[ -z "$logs" ] || cat $logs
exit $failed
