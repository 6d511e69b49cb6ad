"""Pipelines' configurations from Python, and the plug-in's hook."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from stagelink import _core
from stagelink import omni_config as oc
from stagelink.connectors import create_connectors
from stagelink.vllm_omni import chosen_names
from stagelink.vllm_omni.hook import when_imported

sys.path.insert(0, str(Path(__file__).parent))

import stores  # noqa: E402

PAGE = Path(__file__).parents[4] / "docs" / "connectors" / "store.md"

PIPELINE = """connectors:
  store: {name: YuanrongConnector, extra: {namespace: NAME, capacity: 1MiB}}
stages:
  - {stage_id: 0, output_connectors: {to_stage_1: store}}
  - {stage_id: 1, output_connectors: {to_stage_2: store}}
  - {stage_id: 2}
edges:
  - {from: 0, to: 1, window_size: 1}
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE.replace("NAME", stores.namespace()))
    return path


def test_a_file_gives_connectors_that_keep_the_bounds_of_their_edges(pipeline: Path) -> None:
    config = oc.load_omni_transfer_config(pipeline)
    assert config is not None
    assert list(config.connectors) == [("0", "1"), ("1", "2")]
    assert config.bounds[("0", "1")] == oc.EdgeBounds(1, -1)
    assert config.has_connector_for_edge("0", "1") and not config.has_connector_for_edge("0", "2")
    sending, middle = create_connectors(config, 0), create_connectors(config, "1")
    assert set(sending) == {("0", "1")} and set(middle) == {("0", "1"), ("1", "2")}
    edge = ("0", "1")
    assert sending[edge].stage_id == 0
    assert sending[edge].put(*edge, "a", 1)[0]
    got = middle[edge].get(*edge, "a")
    assert got is not None and got[0] == 1
    for one in (*sending.values(), *middle.values()):
        one.close()


def test_dictionaries_are_read_like_files(pipeline: Path) -> None:
    text = pipeline.read_text()
    plain = {
        "runtime": {
            "connectors": {
                "store": {
                    "name": "YuanrongConnector",
                    "extra": {
                        "namespace": text.split("namespace: ")[1].split(",")[0],
                        "capacity": "1MiB",
                    },
                }
            },
            "edges": [{"from": 0, "to": 1, "window_size": 1}],
        },
        "stage_args": [
            {"stage_id": 0, "output_connectors": {"to_stage_1": "store"}},
            {"stage_id": 1, "output_connectors": {"to_stage_2": "store"}},
            {"stage_id": 2},
        ],
    }
    assert oc.load_omni_transfer_config(config_dict=plain) == oc.load_omni_transfer_config(pipeline)
    assert oc.load_omni_transfer_config() is None
    plain["runtime"]["enabled"] = False  # type: ignore[index]
    config = oc.load_omni_transfer_config(config_dict=plain)
    assert config is not None and create_connectors(config, 0) == {}


def test_mistakes_are_errors_with_file_and_line(pipeline: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Config file not found"):
        oc.load_omni_transfer_config(tmp_path / "none.yaml")
    for old, new, message in (
        ("capacity: 1MiB", "capactiy: 1MiB", r"pipeline.yaml:2:\d+: unknown option `capactiy`"),
        ("capacity: 1MiB", "capacity: 1e9", r"pipeline.yaml:2:\d+: capacity"),
        ("to_stage_2: store", "to_stage_2: shop", "Undefined connector reference: shop"),
        ("{stage_id: 2}", "null", r"pipeline.yaml:6:5: a stage must be a map"),
    ):
        path = tmp_path / "pipeline.yaml"
        text = PIPELINE.replace("NAME", "n")
        path.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=message):
            oc.load_omni_transfer_config(path)
    with pytest.raises(ValueError, match="config_dict:"):
        oc.load_omni_transfer_config(config_dict={"stages": {}})


def test_ports_are_those_of_the_host() -> None:
    assert oc.compute_connector_zmq_port(50051, purpose="kv_transfer", from_stage=0) == 50151
    for arguments in (
        {"purpose": "nothing", "from_stage": 0},
        {"purpose": "kv_transfer", "from_stage": 16},
        {"purpose": "kv_transfer", "from_stage": 0, "replica_id": 16},
        {"purpose": "kv_transfer", "from_stage": 0, "local_rank": -1},
    ):
        with pytest.raises(ValueError):
            oc.compute_connector_zmq_port(50051, **arguments)  # type: ignore[arg-type]
    spec = oc.ConnectorSpec("NixlConnector", {"zmq_port": 100})
    sender = oc.resolve_connector_spec(spec, stage_id=2, role="sender", local_rank=1)
    assert sender.extra == {"zmq_port": 118, "stage_id": 2, "role": "sender"}
    assert spec.extra == {"zmq_port": 100}


def test_the_page_is_true(tmp_path: Path) -> None:
    page = PAGE.read_text()
    assert _core.store_connector_options_text().replace("## ", "### ").strip() in page
    blocks = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        config = oc.load_omni_transfer_config(path)
        assert config is not None and config.connectors
        if number == 0:
            for one in create_connectors(config, 0).values():
                assert f"shm {one.namespace}  local" in page
                one.close()
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 1
    exec(compile(examples[0], str(PAGE), "exec"), {})


def test_the_names_that_become_ours_are_chosen_by_the_environment() -> None:
    assert chosen_names({})[:2] == ("YuanrongConnector", "StagelinkStoreConnector")
    assert chosen_names({"STAGELINK_OMNI_CONNECTORS": " A, B"}) == ("A", "B")
    assert chosen_names({"STAGELINK_OMNI_CONNECTORS": "none"}) == ()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "a_host").mkdir()
    (tmp_path / "a_host" / "__init__.py").write_text("")
    (tmp_path / "a_host" / "factory.py").write_text("names = ['own']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield "a_host.factory"
    sys.meta_path[:] = before
    for name in ("a_host.factory", "a_host"):
        sys.modules.pop(name, None)


def _add(module: ModuleType) -> None:
    module.names.append("ours")


def test_a_module_is_changed_when_it_is_imported_and_not_imported_for_it(host: str) -> None:
    finders = len(sys.meta_path)
    when_imported(host, _add)
    when_imported(host, _add)
    assert host not in sys.modules
    assert importlib.import_module(host).names == ["own", "ours"]
    assert len(sys.meta_path) == finders
    when_imported(host, _add)  # It is there: at once.
    assert importlib.import_module(host).names == ["own", "ours", "ours"]


def test_importing_the_plug_in_imports_nothing_of_the_host() -> None:
    code = (
        "import sys, json\n"
        "import stagelink.vllm_omni as plugin, stagelink.connectors\n"
        "plugin.register()\n"
        "print(json.dumps([n for n in sys.modules if n.split('.')[0] in ('vllm', 'vllm_omni', "
        "'torch')]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(done.stdout) == []
