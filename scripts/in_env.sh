#!/bin/sh
# Run a command in the environment that scripts/setup.sh made: in_env.sh COMMAND [ARGUMENT...]
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
PATH=$root/.venv/bin:$PATH
export PATH
# Without these Spark starts its workers with whatever `python3` is on PATH.
PYSPARK_PYTHON=$root/.venv/bin/python
PYSPARK_DRIVER_PYTHON=$PYSPARK_PYTHON
export PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
# So that Spark's workers, too, find benchmarks, examples and tests.
PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH
if [ -f "$root/.venv/acker/java_home" ]; then
    JAVA_HOME=$(cat "$root/.venv/acker/java_home")
    export JAVA_HOME
fi
# A Spark of another version that SPARK_HOME names would be started in place of the one that is installed here.
unset SPARK_HOME
# Where Python may keep no compiled modules, each of the many processes of a run compiles what it imports anew.
unset PYTHONDONTWRITEBYTECODE
exec "$@"
