"""Requests with several prompts or several choices.

vLLM gives all of them one set of kv_transfer_params, but a transfer has one reader. So each choice
becomes a call of its own, with its own transfer, and the answers are put together here.
"""

import json
from typing import Any

from ..errors import ProxyError
from .events import event_data, split_events


def split_request(body: dict[str, Any], chat: bool, most: int) -> list[dict[str, Any]]:
    """One body for each choice, in the order of their indices. ProxyError if it cannot be split."""
    n = body.get("n")
    if n is None:
        n = 1
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ProxyError(400, "n must be a whole number of at least 1")
    if body.get("use_beam_search"):
        raise ProxyError(400, "use_beam_search: beams of one request cannot share a transfer")
    prompts = [None] if chat else _prompts(body)
    if len(prompts) * n > most:
        raise ProxyError(
            400, f"{len(prompts)} prompts times n={n} are more than {most} choices (--max-siblings)"
        )
    if len(prompts) * n == 1:
        return [body]
    bodies = []
    for prompt in prompts:
        for index in range(n):
            one = {**body, "n": 1}
            if prompt is not None:
                one["prompt"] = prompt
            seed = body.get("seed")
            if isinstance(seed, int) and not isinstance(seed, bool):
                one["seed"] = seed + index  # As vLLM does it.
            bodies.append(one)
    return bodies


def _prompts(body: dict[str, Any]) -> list[Any]:
    """The prompts of a completion; one that is a list of tokens is one prompt."""
    if isinstance(body.get("prompt_embeds"), list):
        raise ProxyError(400, "prompt_embeds: one prompt a request, please")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        return prompt
    return [prompt]


def merge_usage(usages: list[dict[str, Any] | None], n: int) -> dict[str, Any] | None:
    """Tokens of all choices; those of a prompt count once, not once for each of its n choices."""
    if any(usage is None for usage in usages):
        return None
    known = [usage for usage in usages if usage is not None]
    merged = dict(known[0])
    merged["prompt_tokens"] = sum(usage.get("prompt_tokens", 0) for usage in known[::n])
    merged["completion_tokens"] = sum(usage.get("completion_tokens") or 0 for usage in known)
    merged["total_tokens"] = merged["prompt_tokens"] + merged["completion_tokens"]
    return merged


def merge_answers(bodies: list[bytes], n: int) -> bytes:
    """One answer out of those of all choices. ValueError if one is no completion."""
    documents = [json.loads(body) for body in bodies]
    merged = dict(documents[0])
    merged["choices"] = []
    for index, document in enumerate(documents):
        for choice in document["choices"]:
            merged["choices"].append({**choice, "index": index})
    merged["usage"] = merge_usage([document.get("usage") for document in documents], n)
    return json.dumps(merged).encode()


class StreamMerger:
    """Puts the events of several streams into one."""

    def __init__(self, choices: int, n: int) -> None:
        self._n = n
        self._id: str | None = None
        self._usages: list[dict[str, Any] | None] = [None] * choices
        self._last: dict[str, Any] | None = None

    def events(self, index: int, whole: bytes) -> bytes:
        """What to pass on of some events of one choice. ValueError if they are not JSON."""
        out = []
        for event in split_events(whole):
            data = event_data(event)
            if data is None or data == b"[DONE]":
                continue
            document = json.loads(data)
            if not isinstance(document, dict):
                raise ValueError("an event that is not an object")
            if self._id is None:
                self._id = document.get("id")
            document["id"] = self._id
            choices = document.get("choices")
            if choices:
                document["choices"] = [{**choice, "index": index} for choice in choices]
            elif document.get("usage") is not None:
                self._usages[index] = document["usage"]
                self._last = document
                continue
            out.append(b"data: " + json.dumps(document).encode() + b"\n\n")
        return b"".join(out)

    def end(self) -> bytes:
        """The usage of all choices, if it was asked for, and the end."""
        last = b""
        usage = merge_usage(self._usages, self._n)
        if self._last is not None and usage is not None:
            last = b"data: " + json.dumps({**self._last, "usage": usage}).encode() + b"\n\n"
        return last + b"data: [DONE]\n\n"
