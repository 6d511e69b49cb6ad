"""The serializer against vLLM-Omni's: equal bytes one way, equal objects the other."""

import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import payloads
import pytest
import torch

from stagelink import serializer

SEEDS = range(int(os.environ.get("STAGELINK_OMNI_SEEDS", "1000")))


def _theirs(omni_serializer: Any, value: Any) -> bytes | None:
    """None where it fails on a tensor of one column: contiguous, but not by its strides."""
    try:
        return bytes(omni_serializer.serialize(value))
    except RuntimeError as error:
        assert "self.stride(-1) must be 1" in str(error)
        return None


def test_what_we_write_is_byte_for_byte_what_vllm_omni_writes(omni_serializer: Any) -> None:
    compared = 0
    for seed in SEEDS:
        value = payloads.draw(random.Random(seed))
        raw = _theirs(omni_serializer, value)
        if raw is None:
            continue
        compared += 1
        assert serializer.encode(value) == raw, f"seed {seed}"
    assert compared > 0.9 * len(SEEDS)


@pytest.mark.parametrize("copy", [False, True])
def test_what_vllm_omni_writes_is_read_as_it_reads_it(omni_serializer: Any, copy: bool) -> None:
    for seed in SEEDS:
        raw = _theirs(omni_serializer, payloads.draw(random.Random(seed)))
        if raw is None:
            continue
        ours = serializer.decode(raw, copy=copy)
        apart = payloads.difference(ours, omni_serializer.deserialize(raw))
        assert apart is None, f"seed {seed}: {apart}"


def test_what_only_we_write_vllm_omni_reads(omni_serializer: Any) -> None:
    column = torch.arange(12.0).reshape(3, 4)[:, :1]
    for value in ([column.t()], {"flipped": torch.tensor([1 + 2j]).conj()}):
        raw = serializer.encode(value)
        assert payloads.difference(serializer.decode(raw), omni_serializer.deserialize(raw)) is None


def test_the_fast_form_gives_what_the_compatible_one_gives() -> None:
    for seed in SEEDS:
        value = payloads.draw(random.Random(seed))
        fast = serializer.decode(serializer.encode(value, "fast", checksum=True))
        again = serializer.decode(serializer.encode(value))
        assert serializer.encode(fast) == serializer.encode(again), f"seed {seed}"


@pytest.mark.parametrize(
    "value",
    [1j, np.float32(1), np.int64(1), np.array([object()]), np.zeros(2, [("a", "i4")]), object(),
     {1: [range(3)]}, torch.float32, "\ud800", 2**64, -(2**63) - 1],
    ids=repr,
)  # fmt: skip
def test_both_refuse_the_same_things(omni_serializer: Any, value: Any) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        omni_serializer.serialize({"k": value})
    with pytest.raises(theirs.type):
        serializer.encode({"k": value})


def test_a_tensor_without_bytes_or_of_an_unknown_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"\$\['t'\]: a tensor on device meta"):
        serializer.encode({"t": torch.zeros(2, device="meta")})
    with pytest.raises(TypeError, match=r"\$\[0\]: elements of type `quint8`"):
        serializer.encode([torch.quantize_per_tensor(torch.zeros(2), 1.0, 0, torch.quint8)])
    with pytest.raises(TypeError, match=r"\$: only strided tensors"):
        serializer.encode(torch.zeros(2, 2).to_sparse())


def _request(finished: bool) -> Any:
    from vllm.outputs import CompletionOutput, RequestOutput

    output = CompletionOutput(
        index=0, text="hi", token_ids=[1, 2], cumulative_logprob=-0.5, logprobs=None,
        finish_reason="stop", stop_reason=None,
    )  # fmt: skip
    output.multimodal_output = {"audio": torch.arange(4.0)}
    request = RequestOutput(
        request_id="r", prompt="p", prompt_token_ids=[1], prompt_logprobs=None, outputs=[output],
        finished=finished,
    )  # fmt: skip
    request.multimodal_output = {"codes": torch.arange(3)}
    return request


def test_request_outputs_are_written_and_on_demand_read_as_vllm_omni_does(
    omni_serializer: Any,
) -> None:
    from vllm.outputs import RequestOutput

    request = _request(finished=False)
    raw = serializer.encode({"out": request})
    assert raw == omni_serializer.serialize({"out": request})
    theirs = omni_serializer.deserialize(raw)["out"]
    ours = serializer.decode(raw, revive=True)["out"]
    assert isinstance(ours, RequestOutput)
    assert ours.multimodal_output["codes"].equal(theirs.multimodal_output["codes"])
    first, second = ours.outputs[0], theirs.outputs[0]
    assert first == second
    assert first.multimodal_output["audio"].equal(second.multimodal_output["audio"])
    plain = serializer.decode(raw)["out"]
    assert type(plain) is dict
    assert type(plain["outputs"][0]) is dict


def test_omni_request_outputs_are_written_and_on_demand_read_as_vllm_omni_does(
    omni_serializer: Any,
) -> None:
    from PIL import Image
    from vllm_omni.outputs import OmniRequestOutput

    inner = _request(finished=True)
    one = OmniRequestOutput(
        request_id="r", stage_id=1, final_output_type="image", outputs=inner.outputs,
        images=[Image.new("RGB", (3, 2), (1, 2, 3))], latents=torch.arange(6.0).reshape(2, 3),
        metrics={"ms": 1.5}, _multimodal_output={"codes": torch.arange(3)},
    )  # fmt: skip
    raw = serializer.encode([one])
    assert raw == omni_serializer.serialize([one])
    theirs = omni_serializer.deserialize(raw)[0]
    (ours,) = serializer.decode(raw, revive=True)
    assert type(ours) is type(theirs) is OmniRequestOutput
    for name in OmniRequestOutput.__dataclass_fields__:
        apart = payloads.difference(getattr(ours, name), getattr(theirs, name), name)
        assert apart is None, apart
    assert type(serializer.decode(raw)[0]) is dict
    # What earlier versions have written: the stage's output lies inside.
    old = serializer.encode(
        {"finished": True, "final_output_type": "text", "request_output": inner}
    )
    nested = serializer.decode(old, revive=True)
    assert nested.prompt_token_ids == omni_serializer.deserialize(old).prompt_token_ids == [1]


def test_a_users_dict_stays_one_whatever_its_keys(omni_serializer: Any) -> None:
    suspicious = {"index": 1, "text": "t", "token_ids": [1], "finish_reason": None}
    raw = serializer.encode(suspicious)
    with pytest.raises(Exception, match="required field"):
        omni_serializer.deserialize(raw)
    assert serializer.decode(raw) == suspicious
    assert serializer.decode(raw, revive=True) == suspicious
    assert serializer.decode(serializer.encode({"__tensor__": True})) == {"__tensor__": True}


def _address_in(buffer: bytearray) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data)


@pytest.mark.parametrize("wire", ["compat", "fast"])
def test_tensors_are_views_that_keep_the_buffer(wire: serializer.Wire) -> None:
    source = torch.arange(10_000, dtype=torch.float32)
    frame = bytearray(serializer.encode({"t": source, "n": "x"}, wire))
    begin = _address_in(frame)
    tensor = serializer.decode(frame)["t"]
    assert begin < tensor.data_ptr() < begin + len(frame)
    assert tensor.equal(source)
    with pytest.raises(BufferError):
        frame.append(0)
    del tensor
    frame.append(0)
    del frame[-1]
    own = serializer.decode(frame, copy=True)["t"]
    frame[:] = bytes(len(frame))
    assert own.add_(1).equal(source + 1)


def test_every_torch_type_comes_back_from_any_address() -> None:
    rng = random.Random(7)
    for name in payloads.TORCH_TYPES:
        kind = getattr(torch, name)
        raw = torch.tensor(list(rng.randbytes(1024)), dtype=torch.uint8)
        source = (raw % 2 if name == "bool" else raw).view(kind)
        for pad in range(4):
            value = {"p" * pad: 0, "t": source.reshape(2, -1).t(), "e": source[:0], "0": source[0]}
            for wire in ("compat", "fast"):
                back = serializer.decode(serializer.encode(value, wire))  # type: ignore[arg-type]
                for key in ("t", "e", "0"):
                    expected = value[key].contiguous()
                    assert payloads.difference(back[key].clone(), expected) is None, (name, key)


def test_torch_is_imported_only_for_tensors_and_arrays_stand_in_without_it() -> None:
    frame = serializer.encode({"t": torch.arange(3, dtype=torch.bfloat16)})
    code = (
        "import sys; from stagelink import serializer as s\n"
        "assert s.decode(s.encode([1, 2])) == [1, 2] and 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        f"array = s.decode({frame!r})['t']\n"
        "assert type(array).__name__ == 'ndarray' and str(array.dtype) == 'bfloat16', array\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
