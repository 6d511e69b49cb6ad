"""A pipeline's file with connectors that pull; the page that says how to use them."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from child import Child

from stagelink import _core
from stagelink import omni_config as oc
from stagelink.connectors import (
    ConnectorClosed,
    YuanrongTransferEngineConnector,
    create_connectors,
)
from stagelink.errors import InvalidArgument, InvalidState
from stagelink.vllm_omni import chosen_names

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import pulls  # noqa: E402

PAGE = HERE.parents[3] / "docs" / "connectors" / "pull.md"
Start = Callable[..., Child]

PIPELINE = """connectors:
  pull:
    name: StagelinkPullConnector
    extra: {host: 127.0.0.1, zmq_port: BASE, memory_pool_size: 1048576, protocol: auto}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: pull, to_stage_2: pull}}
  - {stage_id: 1}
  - {stage_id: 2}
"""


def _page() -> str:
    return PAGE.read_text()


def _seed() -> str:
    """The two parts of one file, as they are printed."""
    connector, stages, _ = re.findall(r"```yaml\n(.*?)```", _page(), re.DOTALL)
    return str(connector + stages)


def _free_base() -> int:
    """A base whose ports up to 255 above it are free, as far as one can tell."""
    for base in range(42_000, 60_000, 256):
        probes = []
        try:
            for port in range(base, base + 256, 4):
                probes.append(socket.create_server(("", port)))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        return base
    raise AssertionError("no free ports")


def test_a_file_gives_each_stage_its_role_and_its_port(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    base = _free_base()
    path.write_text(PIPELINE.replace("BASE", str(base)))
    config = oc.load_omni_transfer_config(path)
    sending = create_connectors(config, 0)
    assert sending["0", "1"] is sending["0", "2"]  # One listens for both.
    one = sending["0", "1"]
    assert isinstance(one, YuanrongTransferEngineConnector)
    assert (one.zmq_port, one.can_put, one.stage_id) == (base, True, 0)
    for stage in ("1", "2"):
        other = create_connectors(config, stage)["0", stage]
        assert other.can_put is False
        assert (other.sender_host, other.sender_zmq_port) == ("127.0.0.1", base)
        assert one.put("0", stage, "r", stage.encode())[0]
        assert pulls.raw(other.get("0", stage, "r")) == stage.encode()
        other.close()
    one.close()


def test_edges_that_a_stage_receives_on_share_a_pool_and_keep_their_senders(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pipeline.yaml"
    stages = "\n".join(
        f"  - {{stage_id: {stage}, output_connectors: {{to_stage_2: pull}}}}" for stage in (0, 1)
    )
    head = PIPELINE.split("stages:")[0].replace("BASE", str(_free_base()))
    path.write_text(f"{head}stages:\n{stages}\n  - {{stage_id: 2}}\n")
    config = oc.load_omni_transfer_config(path)
    senders = {stage: create_connectors(config, stage)[stage, "2"] for stage in ("0", "1")}
    made = create_connectors(config, 2)
    first, second = made["0", "2"], made["1", "2"]
    assert isinstance(first, YuanrongTransferEngineConnector)
    assert isinstance(second, YuanrongTransferEngineConnector)
    assert first is not second and first._core is second._core
    for stage, sender in senders.items():
        assert sender.put(stage, "2", "r", f"of {stage}".encode())[0]
    assert pulls.raw(second.get("1", "2", "r")) == b"of 1"
    deadline = time.monotonic() + 20
    assert pulls.raw(first.get_many("0", "2", ["r"], deadline=deadline)[0]) == b"of 0"
    # What one is told of its sender is nothing to the other.
    first.update_sender_info(second.sender_host, second.sender_zmq_port)
    assert senders["1"].put("0", "2", "s", b"x")[0]
    assert pulls.raw(first.get("0", "2", "s")) == b"x"
    first.close()
    first.close()
    with pytest.raises(ConnectorClosed):
        first.get("0", "2", "r")
    assert senders["1"].put("1", "2", "t", b"y")[0]
    assert pulls.raw(second.get("1", "2", "t")) == b"y"
    with pytest.raises(InvalidState, match="closed"):
        YuanrongTransferEngineConnector({"role": "receiver"}, share=first)
    second.close()
    for sender in senders.values():
        with pytest.raises(InvalidArgument, match="role: receiver"):
            YuanrongTransferEngineConnector({"role": "receiver"}, share=sender)  # type: ignore[arg-type]
        sender.close()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("checksum", True),
        ("role", "sender"),
        ("role", "dual"),
        ("memory_pool_size", "2MiB"),
        ("protocol", "tcp"),
        ("host", "0.0.0.0"),
        ("runtime_dir", "/tmp"),
        ("ask_timeout", "700ms"),
        ("claim_timeout", "61s"),
        ("max_waiting", 7),
        ("compat_030", True),
    ],
)
def test_only_equal_options_share_a_pool(option: str, value: Any) -> None:
    here = {"host": "127.0.0.1", "role": "receiver", "memory_pool_size": "1MiB"}
    with YuanrongTransferEngineConnector(here) as one:
        with pytest.raises(InvalidArgument, match=f"^{option}\\b.*`share`"):
            YuanrongTransferEngineConnector({**here, option: value}, share=one)
        # Written otherwise, it is the same; where the sender is may differ.
        same = {**here, "memory_pool_size": 1 << 20, "sender_host": "h", "sender_zmq_port": 5}
        with YuanrongTransferEngineConnector(same, share=one) as other:
            assert other._core is one._core


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("protocol: auto", "protocl: auto", r"pipeline.yaml:4:\d+: unknown option `protocl`"),
        ("protocol: auto", "protocol: smoke", r"pipeline.yaml:4:\d+: protocol"),
        ("protocol: auto", "protocol: ascend, memory_pool_device: cpu", "memory_pool_device"),
        ("StagelinkPullConnector", "StagelinkPullConector", "did you mean `StagelinkPullConn"),
        ("zmq_port: BASE", "zmq_port: 65536", "zmq_port"),
    ],
)
def test_a_mistake_is_an_error_with_file_and_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE.replace(old, new).replace("BASE", "50051"))
    with pytest.raises(ValueError, match=message):
        oc.load_omni_transfer_config(path)


def test_the_pages_file_resolves_ports_and_ranks_and_needs_an_npu(
    child: Start, tmp_path: Path
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(_seed())
    config = oc.load_omni_transfer_config(path)
    assert config is not None
    kv = [port for port in config.ports if port.purpose == "kv_transfer"]
    assert [(p.rank, p.port) for p in kv] == [(r, 50151 + 16 * r) for r in range(4)]
    with pytest.raises(ValueError, match="stage 0 has 4 ranks.*local_rank"):
        create_connectors(config, 0)
    peer = child(LOCAL_RANK="0")  # The package's import starts threads that stay.
    for stage in (0, 1):
        with pytest.raises(ImportError, match="protocol `ascend` needs|keeps its pool on an NPU"):
            peer.run(RANK, folder=str(HERE), path=str(path), stage=stage, rank=0)


RANK = """
import sys
import time
sys.path.insert(0, folder)
import pulls
from stagelink import omni_config
from stagelink.connectors import create_connectors
config = omni_config.load_omni_transfer_config(path)
made = create_connectors(config, stage, purpose="kv_transfer", local_rank=rank)
one = made["0", "1"]
one.get_connection_info()
"""


def test_with_two_lines_changed_it_moves_data_over_four_ranks(child: Start, tmp_path: Path) -> None:
    _, _, changed = re.findall(r"```yaml\n(.*?)```", _page(), re.DOTALL)
    text = _seed()
    for line in changed.splitlines():
        text, count = re.subn(rf"^ *{line.split(':')[0].strip()}:.*$", line, text, flags=re.M)
        assert count == 1
    differing = [a for a, b in zip(_seed().splitlines(), text.splitlines(), strict=True) if a != b]
    assert len(differing) == 2
    # The ports of the page may be taken here, and four gigabytes of pools are not needed.
    base = _free_base()
    text = text.replace("50051", str(base)).replace("1073741824", "16777216")
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    ranks = [(stage, rank) for stage in (0, 1) for rank in range(4)]
    peers = {place: child() for place in ranks}
    for (stage, rank), peer in peers.items():
        peer.start(RANK, folder=str(HERE), path=str(path), stage=stage, rank=rank)
    places = {place: peer.finish(60) for place, peer in peers.items()}
    for rank in range(4):
        assert places[0, rank]["zmq_port"] == base + 100 + 16 * rank
        peers[0, rank].run(
            "one.put('0', '1', f'request_{rank}', np.full(1 << 20, rank, np.uint8).tobytes())",
        )
        # What vLLM-Omni tells a receiver with each request.
        place = places[0, rank]
        peers[1, rank].start(
            "one.update_sender_info(place['host'], place['zmq_port'])\n"
            "pulls.raw(one.get('0', '1', f'request_{rank}'))",
            place=place,
        )
    for rank in range(4):
        assert peers[1, rank].finish() == bytes([rank]) * (1 << 20)
    for peer in peers.values():
        peer.run("one.close()")


def test_the_page_is_true() -> None:
    page = _page()
    assert _core.pull_connector_options_text().replace("## ", "### ").strip() in page
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), {})


def test_the_names_of_connectors_that_pull_are_ours_by_default() -> None:
    assert {"YuanrongTransferEngineConnector", "StagelinkPullConnector"} <= set(chosen_names({}))
