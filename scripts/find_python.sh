#!/bin/sh
# Print the path of the newest Python that can build and run acker, or one sentence that says what is missing;
# with --all the paths of one Python for each version (3.13, 3.12, ...) that is here.
#
# Suitable: CPython 3.11 to 3.14 (what PySpark supports), 64 bits, with a GIL, with venv, ensurepip and Python.h.
# Looked at: $PYTHON and nothing else if it is set; else python3.14 .. python3.11 on PATH, pyenv's versions, python3 and
# python. Each one is started, because a pyenv shim exists for versions that are not selected, and fails.
set -u

newest=14
oldest=11

# Prints nothing and succeeds if the interpreter is suitable; prints why not and fails if it is not.
judge='
import importlib.util, os, platform, struct, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
def refuse(why):
    sys.stdout.write(why)
    sys.exit(1)
oldest, newest = int(sys.argv[1]), int(sys.argv[2])
if platform.python_implementation() != "CPython":
    refuse("is not CPython")
if not (3, oldest) <= sys.version_info[:2] <= (3, newest):
    refuse("is Python %s; 3.%d to 3.%d are supported" % (version, oldest, newest))
if struct.calcsize("P") != 8:
    refuse("is a 32-bit Python")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    refuse("is a free-threaded Python")
for module in ("venv", "ensurepip"):
    if importlib.util.find_spec(module) is None:
        refuse("has no module %s (Debian: apt-get install python%s-venv)" % (module, version))
include = sysconfig.get_path("include")
if not os.path.isfile(os.path.join(include, "Python.h")):
    refuse("has no Python.h (Debian: apt-get install python%s-dev; Fedora: dnf install python3-devel; "
           "Alpine: apk add python3-dev)" % version)
'

refusals=""
all=no
[ "${1:-}" != --all ] || all=yes
printed=" "

# Prints the interpreter's own path if the interpreter named by $1 is suitable, and ends the script unless all are
# wanted; of all, those of a version that was printed before are passed over.
try() {
    [ -x "$1" ] || return 0
    if reason=$("$1" -I -c "$judge" "$oldest" "$newest" 2>/dev/null); then
        if [ $all = no ]; then
            "$1" -I -c 'import sys; print(sys.executable)'
            exit 0
        fi
        version=$("$1" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        case $printed in *" $version "*) return 0 ;; esac
        printed="$printed$version "
        "$1" -I -c 'import sys; print(sys.executable)'
        return 0
    fi
    refusals="$refusals
  $1 ${reason:-does not run}"
}

# Tries every file of the name $1 on PATH, not the first one only: a shim may stand before the real one.
try_on_path() {
    rest=$PATH:
    while [ -n "$rest" ]; do
        try "${rest%%:*}/$1"
        rest=${rest#*:}
    done
}

if [ -n "${PYTHON:-}" ]; then
    named=$(command -v "$PYTHON") || {
        echo "PYTHON=$PYTHON: no such program." >&2
        exit 1
    }
    try "$named"
    [ "$printed" = " " ] || exit 0
    echo "PYTHON=$PYTHON cannot be used:$refusals" >&2
    exit 1
fi

pyenv_versions=${PYENV_ROOT:-${HOME:-}/.pyenv}/versions
minor=$newest
while [ "$minor" -ge "$oldest" ]; do
    try_on_path "python3.$minor"
    # Patch releases in falling order of their number, which the shell's own order is not (3.12.10 before 3.12.9).
    # shellcheck disable=SC2010 # sorted by number
    for folder in $(ls "$pyenv_versions" 2>/dev/null | grep -E "^3\.$minor\.[0-9]+$" | sort -t . -k 3,3nr); do
        try "$pyenv_versions/$folder/bin/python3.$minor"
    done
    minor=$((minor - 1))
done
try_on_path python3
try_on_path python
[ "$printed" = " " ] || exit 0

{
    echo "No suitable Python: acker needs CPython 3.$oldest to 3.$newest with venv and headers" \
        "(Debian: apt-get install python3 python3-venv python3-dev; Fedora: dnf install python3 python3-devel;" \
        "Alpine: apk add python3 python3-dev; macOS: brew install python); PYTHON=... names one."
    [ -z "$refusals" ] || echo "Looked at:$refusals"
} >&2
exit 1
