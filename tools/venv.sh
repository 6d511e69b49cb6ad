#!/usr/bin/env bash
# Makes .venv with what tools/requirements.txt lists. Does nothing if it is up to date.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/requirements.sha256
wanted=$(sha256sum tools/requirements.txt)
[ -x .venv/bin/python ] && [ "$(cat $stamp 2>/dev/null)" = "$wanted" ] && exit 0

echo "venv: installing tools/requirements.txt into .venv"
python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r tools/requirements.txt
printf '%s\n' "$wanted" >$stamp
