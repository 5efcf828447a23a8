#!/bin/sh
# Run linters, and fail at the end if one of them did.
#
#   lint.sh          all of them
#   lint.sh style    those that take seconds: `make test` runs them
#   lint.sh types    those of types and of workflows, which take a minute or more: `make test-slow` runs them
#   lint.sh --fix    let the formatters rewrite the sources
set -u

cd "$(dirname "$0")/.." || exit
failed=""
ACTIONLINT=v1.7.12

check() {
    name=$1
    shift
    if "$@"; then
        echo "lint: $name ok"
    else
        echo "lint: $name FAILED"
        failed="$failed $name"
    fi
}

# Prints where actionlint is. PyPI has none that brings its program along, so it is built where there is a Go.
find_actionlint() {
    command -v actionlint && return
    command -v go >/dev/null && [ -d .venv ] || return 1
    built=$PWD/.venv/actionlint-$ACTIONLINT
    [ -x "$built/actionlint" ] ||
        GOBIN=$built go install "github.com/rhysd/actionlint/cmd/actionlint@$ACTIONLINT" >/dev/null 2>&1 || return 1
    echo "$built/actionlint"
}

# A linter that is given nothing passes, so the lists must not be empty.
native_sources=$(find ext -name '*.h' -o -path '*/tests/*.cpp' ! -name '_*')
cython_sources=$(find ext -name '*.pyx' -o -name '*.pxi' -o -name '*.pxd')
shell_scripts=$(find scripts -name '*.sh')
for list in "$native_sources" "$cython_sources" "$shell_scripts"; do
    [ -n "$list" ] || { echo "lint: found no files to look at" >&2; exit 1; }
done

if [ "${1:-}" = --fix ]; then
    ruff check --fix --quiet
    ruff format --quiet
    # shellcheck disable=SC2086 # a list
    clang-format -i $native_sources
    exit
fi

check_style() {
    check "ruff check" ruff check --quiet
    check "ruff format" ruff format --check --quiet
    # shellcheck disable=SC2086 # a list
    check cython-lint cython-lint $cython_sources
    # shellcheck disable=SC2086 # a list
    check clang-format clang-format --dry-run --Werror $native_sources
    check codespell codespell
    for script in $shell_scripts; do
        sh -n "$script" || failed="$failed $script"
    done
}

check_types() {
    # Types are checked for Python 3.11 by any newer Python. The last NumPy for 3.11 itself has stubs of its own, which
    # know neither buffers nor what newer ones say of the same functions.
    if python -c "import sys; sys.exit(sys.version_info < (3, 12))"; then
        check mypy mypy --no-error-summary
    else
        echo "lint: mypy not run: it needs the stubs of a NumPy for Python 3.12 or newer"
    fi
    check stubtest python -m mypy.stubtest acker._core acker._flow acker._handles --concise \
        --mypy-config-file pyproject.toml --allowlist scripts/stubtest-allowlist.txt
    check zizmor zizmor --offline --quiet --no-progress --persona pedantic .github
    if actionlint=$(find_actionlint); then
        check actionlint "$actionlint"
    else
        echo "lint: actionlint not run: it is not on PATH, and could not be built (that needs Go)"
    fi
}

case ${1:-} in
style) check_style ;;
types) check_types ;;
"")
    check_style
    check_types
    ;;
*) echo "lint: expected style, types, --fix or nothing, got $1" >&2; exit 2 ;;
esac

if [ -n "$failed" ]; then
    echo "lint:$failed" >&2
    exit 1
fi
