#!/bin/sh
# Build the sdist, a wheel from that sdist, and test the wheel in an environment of its own, away from the source tree:
# a file that the sdist or the wheel lacks shows here, not after the release.
set -eu

cd "$(dirname "$0")/.."
rm -rf dist
python -m build  # the wheel comes from the unpacked sdist
twine check --strict dist/*

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python -m venv "$work/venv"
tar -xzf dist/*.tar.gz -C "$work"
wheel=$(ls "$PWD"/dist/*.whl)
cd "$work"/acker-*
rm -rf src ext
"$work/venv/bin/python" -m pip install --quiet --upgrade "pip>=25.1"  # the first that knows --group
"$work/venv/bin/python" -m pip install --quiet --group pyproject.toml:test "${wheel}[arrow,cli,prometheus,otel]"
"$work/venv/bin/python" -m pytest --ignore=tests/spark -m "not spark and not repository"
