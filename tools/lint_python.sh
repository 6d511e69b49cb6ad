#!/usr/bin/env bash
# ruff (lint and format) and mypy (strict) over the project's Python.
set -euo pipefail
cd "$(dirname "$0")/.."

folders=()
for folder in python tests/python examples tools bench; do
  [ -n "$(find "$folder" -name '*.py' -print -quit 2>/dev/null)" ] && folders+=("$folder")
done
.venv/bin/ruff check --quiet "${folders[@]}"
.venv/bin/ruff format --quiet --check "${folders[@]}"
MYPYPATH=python .venv/bin/mypy --strict --no-error-summary --cache-dir build/mypy tools/*.py
if [ -n "$(find python -name '*.py' -print -quit 2>/dev/null)" ]; then
  MYPYPATH=python .venv/bin/mypy --strict --no-error-summary --cache-dir build/mypy -p stagelink
fi
