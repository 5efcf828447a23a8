#!/bin/sh
# Bring .venv to the state that a make target needs: scripts/setup.sh build|run|quick|lint|test|docs|bench|release
#
# The shell part only finds a Python to start with: the one in .venv if that one runs, else the newest suitable one.
# PYTHON=... names it instead, and .venv is made anew where it was made from another one.
set -eu

cd "$(dirname "$0")/.."
supported='import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))'
if [ -z "${PYTHON:-}" ] && .venv/bin/python -c "$supported" 2>/dev/null; then
    python=.venv/bin/python
else
    python=$(sh scripts/find_python.sh)
fi
exec "$python" scripts/environment.py "$@"
