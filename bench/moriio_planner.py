"""How long vLLM's own MoRIIO connector takes to plan one layer. Prints {"p50_us": ...}.

The same work as the case `planner` of the suite `moriio`: pairs of random blocks of a cache whose
keys and values lie apart. Runs with a Python that has vLLM.
"""

from __future__ import annotations

import json
import random
import statistics
import time

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_layout import (
    compute_block_transfer_offsets,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec

BLOCKS = 16384
PAIRS = 10_000
TOKENS, HEADS, HEAD_SIZE = 16, 8, 128
REPETITIONS = 15
LAYER = "model.layers.0.self_attn.attn"


def main() -> None:
    cache = torch.empty((2, BLOCKS, TOKENS, HEADS, HEAD_SIZE), dtype=torch.bfloat16, device="meta")
    spec = FullAttentionSpec(
        block_size=TOKENS, num_kv_heads=HEADS, head_size=HEAD_SIZE, dtype=torch.bfloat16
    )
    local = random.Random(1).sample(range(1, BLOCKS), PAIRS)
    remote = random.Random(2).sample(range(1, BLOCKS), PAIRS)
    took: list[float] = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        offsets, _, sizes = compute_block_transfer_offsets(
            LAYER, cache, {LAYER: spec}, local, remote, BLOCKS
        )
        took.append(time.perf_counter() - start)
        if len(offsets) > 2 * PAIRS or sum(sizes) != PAIRS * 2 * TOKENS * HEADS * HEAD_SIZE * 2:
            raise SystemExit("the plan is not the one that was asked for")
    print(json.dumps({"p50_us": statistics.median(took) * 1e6}))


if __name__ == "__main__":
    main()
