"""One stage of a pipeline in chunks, or of stage payloads, with vLLM-Omni's own adapters.

`chunk_role.py ROLE CONNECTOR CONFIG`: `send` and `receive` are the two ends of an
OmniChunkTransferAdapter; `put` and `take` those of a diffusion stage's payload. Each prints what it
has seen as JSON.
"""

import json
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

import host
import torch

CONNECTOR = sys.argv[2]
STREAMS = 8
CHUNKS = 5
PATIENCE_S = 100.0


def produce(transfer_manager: Any, multimodal_output: Any, request: Any, is_finished: bool) -> Any:
    """What a model's own processor does: one chunk of codes, or nothing yet."""
    from vllm_omni.data_entry_keys import CodesStruct, OmniPayloadStruct

    if multimodal_output is None:
        return None
    return OmniPayloadStruct(codes=CodesStruct(audio=multimodal_output["codes"]["audio"]))


def model_config(stage_id: int, extra: dict[str, Any]) -> Any:
    """As much of vLLM-Omni's configuration as the adapter reads."""
    return types.SimpleNamespace(
        stage_id=stage_id,
        worker_type="generation",
        async_chunk=True,
        stage_connector_config={"name": CONNECTOR, "extra": extra},
        custom_process_next_stage_input_func="chunk_role.produce" if stage_id == 0 else None,
    )


def adapter(stage_id: int, extra: dict[str, Any]) -> Any:
    from vllm_omni.distributed.omni_connectors.transfer_adapter import chunk_transfer_adapter

    scheduler = types.SimpleNamespace(max_num_seqs=STREAMS)
    config = types.SimpleNamespace(
        model_config=model_config(stage_id, {**extra, "stage_id": stage_id}),
        scheduler_config=scheduler,
    )
    return chunk_transfer_adapter.OmniChunkTransferAdapter(config)


def request(stream: int, *, finished: bool = False) -> Any:
    """As much of a request of vLLM's scheduler as the adapter reads."""
    return types.SimpleNamespace(
        request_id=f"internal-{stream}",
        external_req_id=f"chatcmpl-{stream}",
        resumable=False,
        num_computed_tokens=0,
        num_output_placeholders=0,
        prompt_token_ids=[0],
        additional_information=None,
        prefill_stats=object(),
        is_finished=lambda: finished,
    )


def codes(stream: int, chunk: int) -> torch.Tensor:
    """Two dimensions: the adapter passes such a tensor on as it is."""
    return torch.arange(2000).reshape(2, 1000) + 10_000 * stream + 100_000 * chunk


def until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.001)


def ask(line: str) -> str:
    """Say something to the test and wait for its word."""
    print(line, flush=True)
    return sys.stdin.readline().strip()


def unread(connector: Any) -> int:
    """What was put and nobody has taken: in a store, or at the sender."""
    found = connector.health()
    count: int = found["offers"] if "offers" in found else found["unconsumed"]
    return count


def send(extra: dict[str, Any]) -> dict[str, Any]:
    one = adapter(0, extra)
    ask("ready")
    # The last stream first, while the others are asked for as well and have nothing.
    for stream in [STREAMS - 1, *range(STREAMS - 1)]:
        for chunk in range(CHUNKS):
            last = chunk == CHUNKS - 1
            output = {"codes.audio": codes(stream, chunk)}
            one.save_async(output, request(stream, finished=last), is_segment_finished=last)
        if stream == STREAMS - 1:
            ask("first is sent")
    connector = one.connector
    until(lambda: not one._pending_save_reqs and unread(connector) == 0)
    # A request that is aborted before anybody has asked for it.
    for chunk in range(3):
        one.save_async({"codes.audio": codes(0, chunk)}, request(99))
    until(lambda: unread(connector) == 3)
    one.cleanup_sender("chatcmpl-99")
    connector.cleanup("chatcmpl-99")
    found = connector.health()
    left = unread(connector)
    failures = one.collect_failed_send_request_ids()
    one.shutdown()
    return {"puts": found["puts"], "unread": left, "failures": failures}


def receive(extra: dict[str, Any]) -> dict[str, Any]:
    one = adapter(1, extra)
    requests = {f"internal-{stream}": request(stream) for stream in range(STREAMS)}
    for each in requests.values():
        one.load_async(each)
    ask("ready")
    begin = time.monotonic()
    until(lambda: one._finished_load_reqs)
    first = {"who": sorted(one._finished_load_reqs), "after": time.monotonic() - begin}
    ask("first has come")
    seen: dict[str, int] = dict.fromkeys(requests, 0)
    wrong: list[str] = []
    while any(count < CHUNKS for count in seen.values()):
        until(lambda: one._finished_load_reqs)
        name = next(iter(one._finished_load_reqs))
        one._finished_load_reqs.discard(name)
        stream = int(name.rsplit("-", 1)[1])
        got = requests[name].additional_information["codes"]["audio"]
        if not (got.dtype == torch.int64 and got.equal(codes(stream, seen[name]))):
            wrong.append(f"{name}/{seen[name]}")
        seen[name] += 1
        if (name in one.upstream_exhausted_requests) != (seen[name] == CHUNKS):
            wrong.append(f"{name}/{seen[name]}: the mark of the end")
        if seen[name] < CHUNKS:
            one.load_async(requests[name])
    found = one.connector.health()
    # Closing ends the loops, also one that is in a get.
    one.shutdown()
    one.recv_thread.join(10)
    return {
        "first": first,
        "seen": seen,
        "wrong": wrong,
        "gets": found["gets"],
        "errors": found["errors"],
        "ended": not one.recv_thread.is_alive(),
    }


def runner(stage_id: int, extra: dict[str, Any]) -> Any:
    """vLLM-Omni's diffusion runner as far as stage payloads go, on one rank.

    What its data classes need is not installed; the transport is theirs, whole.
    """
    for name, members in {
        "vllm_omni.diffusion": {},
        "vllm_omni.diffusion.worker": {},
        "vllm_omni.diffusion.data": {"DiffusionOutput": types.SimpleNamespace},
        "vllm_omni.diffusion.request": {"OmniDiffusionRequest": DiffusionRequest},
    }.items():
        module = types.ModuleType(name)
        module.__path__ = [str(host.package_folder().joinpath(*name.split(".")[1:]))]
        module.__dict__.update(members)
        sys.modules[name] = module
    from vllm_omni.diffusion.worker.stage_payload import DiffusionStagePayloadMixin
    from vllm_omni.distributed.omni_connectors import ConnectorSpec, OmniConnectorFactory

    class Runner(DiffusionStagePayloadMixin):  # type: ignore[misc]
        _synchronous_payload_transport = True
        _target_device = torch.device("cpu")

        def _stage_payload_broadcast_groups(self) -> tuple[Any, ...]:
            return ()

    made = Runner()
    made._kv_transfer_manager = types.SimpleNamespace(
        connector=OmniConnectorFactory.create_connector(
            ConnectorSpec(CONNECTOR, {**extra, "stage_id": stage_id})
        ),
        send_stages=("0", "1"),
        recv_stages=("0", "1"),
        _resolve_sender_info=lambda info, stage: info,
    )
    names = ["image", "text"]
    made.od_config = types.SimpleNamespace(
        stage_id=stage_id,
        stage_output_payload_keys=names if stage_id == 0 else [],
        stage_input_payload_keys=names if stage_id == 1 else [],
    )
    return made


class DiffusionRequest(types.SimpleNamespace):
    @staticmethod
    def is_dummy_run_request_id(request_id: str | None) -> bool:
        return False


IMAGE = torch.linspace(-1, 1, 3 * 64 * 64, dtype=torch.bfloat16).reshape(3, 64, 64)


def put(extra: dict[str, Any]) -> dict[str, Any]:
    one = runner(0, extra)
    connector = one._kv_transfer_manager.connector
    ask("ready")
    outputs = [
        types.SimpleNamespace(custom_output={"image": IMAGE + i, "text": f"t{i}", "kept": i})
        for i in range(3)
    ]
    one._maybe_send_stage_payload([DiffusionRequest(request_id=f"d{i}") for i in range(3)], outputs)
    handles = [output.custom_output["_stage_payload_transfer"] for output in outputs]
    kept = [sorted(output.custom_output) for output in outputs]
    until(lambda: connector.reap_consumed() or unread(connector) == 0)
    connector.close()
    return {"handles": handles, "kept": kept}


def take(extra: dict[str, Any]) -> dict[str, Any]:
    one = runner(1, extra)
    connector = one._kv_transfer_manager.connector

    def asked(name: str) -> Any:
        return DiffusionRequest(request_id=name, prompt={"prompt": "p"})

    # The first is asked for before it is put, without a handle: the key follows from its id.
    early = asked("d0")
    waiter = threading.Thread(target=one._maybe_recv_stage_payload, args=(early,))
    waiter.start()
    handle = json.loads(ask("ready"))
    waiter.join(10)
    by_handle = asked("other id")
    by_handle.prompt["_stage_payload_transfer"] = handle
    one._maybe_recv_stage_payload(by_handle)
    late = asked("d2")
    one._maybe_recv_stage_payload(late)
    equal = [
        each.prompt["additional_information"]["image"].equal(IMAGE + i)
        and each.prompt["additional_information"]["text"] == f"t{i}"
        for i, each in enumerate((early, by_handle, late))
    ]
    begin = time.monotonic()
    try:
        one._maybe_recv_stage_payload(asked("nobody"))
        missing = ""
    except RuntimeError as error:
        missing = str(error)
    waited = time.monotonic() - begin
    timeouts = connector.health()["timeouts"]
    connector.close()
    return {"equal": equal, "missing": missing, "waited": waited, "timeouts": timeouts}


def main() -> None:
    host.prepare()
    with tempfile.TemporaryDirectory() as folder:
        host.install_entry_points(Path(folder))
        host.connectors()
    sys.modules["chunk_role"] = sys.modules["__main__"]  # Where the adapter looks for `produce`.
    roles = {"send": send, "receive": receive, "put": put, "take": take}
    print(json.dumps(roles[sys.argv[1]](json.loads(sys.argv[3]))), flush=True)


if __name__ == "__main__":
    main()
