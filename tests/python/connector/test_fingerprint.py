"""What two engines tell of their caches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from stagelink.vllm.fingerprint import cache_format, speculation


def config(**speculative: Any) -> Any:
    found = SimpleNamespace(**speculative) if speculative else None
    return SimpleNamespace(speculative_config=found)


def test_caches_of_other_kinds_of_fp8_differ_though_both_hold_bytes() -> None:
    assert cache_format("fp8", "uint8") == cache_format("fp8_e4m3", "uint8")
    assert cache_format("fp8_e4m3", "uint8") != cache_format("fp8_e5m2", "uint8")
    assert cache_format("auto", "bfloat16") == cache_format("bfloat16", "bfloat16") == "bfloat16"


def test_speculation_is_told_by_method_number_and_draft_model() -> None:
    one = speculation(config(method="eagle", num_speculative_tokens=3, model="org/draft"))
    assert one == "eagle/3/org/draft" != speculation(config())
    ngram = config(method="ngram", num_speculative_tokens=3, model=None)
    assert speculation(ngram) == "ngram/3/"
