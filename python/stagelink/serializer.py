"""Payloads of stages as bytes, and back.

:func:`encode` writes one of two forms; :func:`decode` reads both.

======  ==========================================================================================
compat  byte for byte what the ``OmniSerializer`` of vLLM-Omni 0.30 writes (MessagePack). Tuples
        and sets come back as lists, as they do there.
fast    tensors, arrays, pictures and long byte strings aligned to 64 bytes, behind everything
        else; keeps tuples and sets; takes more than 4 GiB; a checksum on demand.
======  ==========================================================================================

Both copy each large byte once when they write. When they read, tensors, arrays and pictures are
views of the buffer and keep it alive. **A view must not be written to**: torch has no read-only
tensors, so it cannot say so. ``copy=True`` gives tensors and arrays of their own.

torch, NumPy, Pillow and ml_dtypes are used if a payload holds something of theirs. Where torch is
not installed, tensors are read as arrays.
"""

import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from typing_extensions import Buffer

from ._core import EncodePlan, decode_payload, plan_payload

if TYPE_CHECKING:
    from ._core import ObjectStore, Timeout

__all__ = ["EncodePlan", "Wire", "decode", "encode", "get", "plan", "put"]

Wire = Literal["compat", "fast"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_REQUEST_FIELDS = (
    "request_id",
    "prompt",
    "prompt_token_ids",
    "prompt_logprobs",
    "outputs",
    "finished",
    "metrics",
    "lora_request",
    "encoder_prompt",
    "encoder_prompt_token_ids",
    "num_cached_tokens",
    "kv_transfer_params",
)


def plan(obj: object, wire: Wire = "compat", *, checksum: bool = False) -> EncodePlan:
    """Walk through an object and say how many bytes it takes; ``write_into`` then writes it.

    The object must stay as it is until then. Raises :class:`TypeError`, naming the place, for what
    has no form: numbers of NumPy, complex numbers, arrays of objects, unknown element types.
    """
    return plan_payload(obj, wire, checksum, _reduce)


def encode(obj: object, wire: Wire = "compat", *, checksum: bool = False) -> bytes:
    """An object as bytes. To write them elsewhere without a second copy, see :func:`plan`."""
    return plan_payload(obj, wire, checksum, _reduce).to_bytes()


def decode(buffer: Buffer, *, copy: bool = False, revive: bool = False) -> Any:
    """The object of a buffer of either form; raises :class:`~stagelink.Corrupt` if it is none.

    ``revive`` does as vLLM-Omni does: dicts that look like a ``RequestOutput``, a
    ``CompletionOutput`` or an ``OmniRequestOutput`` become one, if their class is loaded. Without
    it a dict is a dict.
    """
    return decode_payload(buffer, copy, _revive if revive else None)


def put(
    store: "ObjectStore",
    key: str | Buffer,
    obj: object,
    wire: Wire = "fast",
    *,
    checksum: bool = False,
    timeout: "Timeout" = 5,
    ttl: "Timeout | None" = None,
) -> int:
    """Write an object into a store, in place. Gives its bytes there."""
    payload = plan(obj, wire, checksum=checksum)
    with store.create(key, payload.nbytes, timeout, ttl) as writer:
        payload.write_into(writer.pieces())
        writer.seal()
    return payload.nbytes


def get(
    store: "ObjectStore",
    key: str | Buffer,
    timeout: "Timeout" = 0,
    *,
    copy: bool = False,
    revive: bool = False,
) -> Any:
    """Read an object from a store. Its views hold the lease."""
    return decode(store.get(key, timeout), copy=copy, revive=revive)


def _loaded(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)


def _reduce(obj: Any) -> tuple[str, Any] | None:
    """What stands for an object that the encoder does not know."""
    if isinstance(obj, Enum):
        return "value", obj.value
    if isinstance(obj, datetime):
        if obj.tzinfo is None:
            return "value", obj.isoformat()
        since = obj - _EPOCH
        return "time", (since.days * 86400 + since.seconds, since.microseconds * 1000)
    if isinstance(obj, date):
        return "value", obj.isoformat()
    if isinstance(obj, time):
        return "value", obj.isoformat().replace("+00:00", "Z")
    if isinstance(obj, timedelta):
        return "value", _duration(obj)
    if isinstance(obj, UUID | Decimal):
        return "value", str(obj)
    request = _loaded("vllm.outputs", "RequestOutput")
    if request is not None and isinstance(obj, request):
        return "value", _request_fields(obj)
    return None


def _duration(value: timedelta) -> str:
    """ISO 8601, as msgspec writes it."""
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    days = f"{value.days}D" if value.days else ""
    seconds = f"{value.seconds}"
    if value.microseconds:
        seconds += f".{value.microseconds:06}".rstrip("0")
    clock = f"T{seconds}S" if seconds != "0" or not days else ""
    return f"{sign}P{days}{clock}"


def _request_fields(obj: Any) -> dict[str, Any]:
    """vLLM's RequestOutput is no dataclass, and may carry one attribute more than it declares."""
    fields = {name: getattr(obj, name) for name in _REQUEST_FIELDS}
    completion = _loaded("vllm.outputs", "CompletionOutput")
    fields["outputs"] = [
        _with_multimodal(_plain(output), output) if isinstance(output, completion) else output
        for output in obj.outputs
    ]
    return _with_multimodal(fields, obj)


def _plain(obj: Any) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in obj.__dataclass_fields__}


def _with_multimodal(fields: dict[str, Any], obj: Any) -> dict[str, Any]:
    extra = getattr(obj, "multimodal_output", None)
    if extra is not None:
        fields["multimodal_output"] = dict(extra) if isinstance(extra, Mapping) else extra
    return fields


def _revive(fields: dict[Any, Any]) -> Any:
    """A dict as the object that it looks like."""
    if "finished" in fields and ("final_output_type" in fields or "images" in fields):
        return _revive_omni(fields)
    if {"request_id", "prompt", "prompt_token_ids", "outputs", "finished"} <= fields.keys():
        return _revive_as("RequestOutput", fields)
    if {"index", "text", "token_ids", "finish_reason"} <= fields.keys():
        return _revive_as("CompletionOutput", fields)
    return fields


def _revive_as(name: str, fields: dict[Any, Any]) -> Any:
    kind = _loaded("vllm.outputs", name)
    if kind is None:
        return fields
    known = {key: value for key, value in fields.items() if key != "multimodal_output"}
    try:
        made = kind(**known)
    except (TypeError, ValueError):
        return fields
    extra = fields.get("multimodal_output")
    if extra is not None:
        made.multimodal_output = extra
    return made


def _revive_omni(fields: dict[Any, Any]) -> Any:
    kind = _loaded("vllm_omni.outputs", "OmniRequestOutput")
    if kind is None:
        return fields
    inner = fields.get("request_output")
    try:
        made = kind(**{key: fields[key] for key in fields if key in kind.__dataclass_fields__})
    except (TypeError, ValueError):
        return fields
    if inner is not None and not isinstance(inner, dict):
        made._copy_content_from(inner)
    return made
