"""vLLM-Omni's own factory builds our connector, and its own loader reads what ours reads."""

import json
import os
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import host
import pytest

ROLE = Path(__file__).with_name("factory_role.py")
PIPELINE = """connectors:
  store: {name: NAME, extra: {capacity: 16MiB, run: RUN}}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: store}}
  - {stage_id: 1, input_connectors: {from_stage_0: store}}
"""
PULLING = """connectors:
  pull:
    name: NAME
    extra: {host: 127.0.0.1, zmq_port: BASE, memory_pool_size: 16777216, memory_pool_device: cpu}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: pull}}
  - {stage_id: 1, input_connectors: {from_stage_0: pull}}
"""


@pytest.fixture(scope="module")
def package() -> Path:
    try:
        return host.package_folder()
    except PackageNotFoundError:
        pytest.skip("vllm-omni is not installed here; tests/omni/run.sh says how")


def _start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    # Other plug-ins of the host need the whole of it.
    env = {**os.environ, "VLLM_PLUGINS": "stagelink", "VLLM_LOGGING_LEVEL": "ERROR", **environment}
    return subprocess.Popen(
        [sys.executable, str(ROLE), *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _answer(process: subprocess.Popen[str]) -> Any:
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("name", ["YuanrongConnector", "StagelinkStoreConnector"])
def test_the_factory_builds_it_by_name_and_it_moves_an_object(
    package: Path, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.replace("NAME", name).replace("RUN", str(os.getpid())))
    stages = [_start(str(stage), str(file)) for stage in (0, 1)]
    sent, got = map(_answer, stages)
    for number, side in enumerate((sent, got)):
        assert side["class"] == "stagelink.vllm_omni.connector.YuanrongConnector"
        assert side["base"] and side["stage_id"] == number
    assert sent["namespace"] == got["namespace"]
    assert sent["put"] == [True, got["size"], None]
    assert got["equal"] and sent["unconsumed"] == 0


@pytest.mark.parametrize("name", ["YuanrongTransferEngineConnector", "StagelinkPullConnector"])
def test_a_pulling_connector_gets_its_role_and_its_port_from_the_host(
    package: Path, tmp_path: Path, name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        base = probe.getsockname()[1] - 100
    file = tmp_path / "pipeline.yaml"
    file.write_text(PULLING.replace("NAME", name).replace("BASE", str(base)))
    stages = [_start("pull", str(stage), str(file)) for stage in (0, 1)]
    sent, got = map(_answer, stages)
    for number, side in enumerate((sent, got)):
        assert side["class"] == "stagelink.vllm_omni.connector.YuanrongTransferEngineConnector"
        assert side["base"] and side["stage_id"] == number
        assert side["port"] == base + 100
    assert sent["can_put"] and not got["can_put"]
    assert sent["put"][0] and sent["offers"] == 0 and got["equal"]


def test_without_being_chosen_the_names_are_the_hosts(package: Path, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE.replace("NAME", "StagelinkStoreConnector"))
    process = _start("0", str(file), STAGELINK_OMNI_CONNECTORS="none")
    _, err = process.communicate(timeout=250)
    assert process.returncode != 0
    assert "Unknown connector: StagelinkStoreConnector" in err


def test_every_deployment_of_the_host_is_read_as_it_reads_it(package: Path) -> None:
    found = _answer(_start("compare", str(package / "deploy")))
    assert found["files"] > 80 and found["edges"] > 50
