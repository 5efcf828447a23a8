#!/bin/sh
# Run the quick tests against a module that was built with ACKER_SANITIZE: sanitize.sh [PYTEST ARGUMENT...]
set -eu

cd "$(dirname "$0")/.."
# Python itself is not built with the sanitizer, so its runtime has to be there before anything else is loaded.
runtime=$("${CXX:-g++}" -print-file-name=libasan.so)
cxx_runtime=$("${CXX:-g++}" -print-file-name=libstdc++.so)
# Python does not free everything at its end, which is not ours to fix. C functions that ask for too much memory get
# none, as usual; but the sanitizer ends a process in which C++ gets none, so one test is left out.
ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
    UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 LD_PRELOAD="$runtime $cxx_runtime" PYTHONMALLOC=malloc \
    exec python -m pytest --ignore=tests/spark -m "not spark and not repository" \
    --deselect tests/local/test_flow.py::test_a_batch_for_which_there_is_no_memory_holds_whole_messages "$@"
