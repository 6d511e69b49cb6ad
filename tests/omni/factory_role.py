"""One stage of a pipeline, with vLLM-Omni's own loader and factory: `factory_role.py STAGE FILE`.

Stage 0 puts, stage 1 gets; each prints what it has done as JSON. `pull STAGE FILE` does so with a
connector that pulls; `compare FOLDER` instead compares our reading of every deployment that
vLLM-Omni ships with its own.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import host
import torch

import stagelink.omni_config as ours

PAYLOAD = {
    "hidden": torch.arange(1 << 16, dtype=torch.bfloat16).reshape(256, 256),
    "meta": {"finished": torch.tensor(True), "ids": [1, 2, 3], "empty": {}},
}


def stage(package: Any, stage_id: int, file: str) -> dict[str, Any]:
    """Build the stage's connector as the host does and move one object."""
    config = package.load_omni_transfer_config(file)
    found = package.get_connectors_config_for_stage(config, stage_id)
    spec = next(iter(found.values()))["spec"]
    connector = package.OmniConnectorFactory.create_connector(
        package.ConnectorSpec(spec["name"], {**spec["extra"], "stage_id": stage_id})
    )
    kind = type(connector)
    out: dict[str, Any] = {
        "class": f"{kind.__module__}.{kind.__name__}",
        "base": isinstance(connector, package.OmniConnectorBase),
        "stage_id": connector.stage_id,
        "namespace": connector.namespace,
    }
    if stage_id == 0:
        out["put"] = connector.put("0", "1", "req_0_0", PAYLOAD)
        deadline = time.monotonic() + 100
        while connector.health()["unconsumed"] and time.monotonic() < deadline:
            time.sleep(0.01)
            connector.reap_consumed()
        out["unconsumed"] = connector.health()["unconsumed"]
    else:
        got = connector.get_with_deadline("0", "1", "req_0_0", deadline=time.monotonic() + 100)
        data, out["size"] = got
        out["equal"] = bool(
            data["hidden"].dtype == torch.bfloat16
            and data["hidden"].equal(PAYLOAD["hidden"])
            and data["meta"]["finished"].shape == ()
            and bool(data["meta"]["finished"])
            and data["meta"]["ids"] == [1, 2, 3]
            and data["meta"]["empty"] == {}
        )
    connector.close()
    return out


def pulling_stage(package: Any, stage_id: int, file: str) -> dict[str, Any]:
    """The same with a connector to which the host gives a role and ports."""
    from vllm_omni.distributed.omni_connectors.utils import config as data
    from vllm_omni.distributed.omni_connectors.utils import initialization

    config = package.load_omni_transfer_config(file)
    spec = next(iter(config.connectors.values()))
    for module in (data, initialization):
        assert spec.name in module.TRANSFER_ENGINE_CONNECTOR_NAMES, module
    made = initialization.create_connectors_from_config(
        config.connectors, caller_stage_id=stage_id, purpose="kv_transfer"
    )
    connector = made["0", "1"]
    kind = type(connector)
    out: dict[str, Any] = {
        "class": f"{kind.__module__}.{kind.__name__}",
        "base": isinstance(connector, package.OmniConnectorBase),
        "stage_id": connector.stage_id,
        "port": connector.sender_zmq_port if stage_id else connector.zmq_port,
        "can_put": connector.can_put,
    }
    deadline = time.monotonic() + 100
    if stage_id == 0:
        out["put"] = connector.put("0", "1", "req_0_0", PAYLOAD)[:2]
        while connector.health()["offers"] and time.monotonic() < deadline:
            time.sleep(0.01)
        out["offers"] = connector.health()["offers"]
    else:
        data = None
        while data is None and time.monotonic() < deadline:  # The sender may not be there yet.
            got = connector.get_with_deadline("0", "1", "req_0_0", deadline=time.monotonic() + 1)
            data = None if got is None else got[0]
        assert data is not None
        out["equal"] = bool(data["hidden"].equal(PAYLOAD["hidden"]))
    connector.close()
    return out


def compare(package: Any, folder: Path) -> dict[str, Any]:
    """Edges, stages and ports of every file: theirs and ours."""
    from vllm_omni.distributed.omni_connectors.utils import initialization as theirs

    files = edges = 0
    for path in sorted(folder.glob("*.yaml")):
        mine = ours.load_omni_transfer_config(path)
        assert mine is not None
        if "base_config:" in path.read_text():
            continue  # Their loader of edges does not follow it.
        files += 1
        their = package.load_omni_transfer_config(path)
        flat = {edge: (spec.name, spec.extra) for edge, spec in their.connectors.items()}
        assert {e: (s.name, s.extra) for e, s in mine.connectors.items()} == flat, path
        edges += len(flat)
        for number in range(4):
            assert ours.get_connectors_config_for_stage(
                mine, number
            ) == theirs.get_connectors_config_for_stage(their, number), (path, number)
            assert ours.resolve_omni_kv_config_for_stage(
                mine, number
            ) == theirs.resolve_omni_kv_config_for_stage(their, number), (path, number)
        for spec in their.connectors.values():
            for role in ("sender", "receiver", None):
                place: dict[str, Any] = {"stage_id": 1, "role": role, "purpose": "kv_transfer"}
                place.update(local_rank=1, replica_id=1)
                wanted = theirs.resolve_connector_spec(spec, **place)
                got = ours.resolve_connector_spec(
                    ours.ConnectorSpec(spec.name, spec.extra), **place
                )
                assert (got.name, got.extra) == (wanted.name, wanted.extra), (path, role)
    return {"files": files, "edges": edges}


def main() -> None:
    host.prepare()
    with tempfile.TemporaryDirectory() as folder:
        host.install_entry_points(Path(folder))
        package = host.connectors()
    if sys.argv[1] == "compare":
        print(json.dumps(compare(package, Path(sys.argv[2]))))
    elif sys.argv[1] == "pull":
        print(json.dumps(pulling_stage(package, int(sys.argv[2]), sys.argv[3])))
    else:
        print(json.dumps(stage(package, int(sys.argv[1]), sys.argv[2])))


if __name__ == "__main__":
    main()
