"""Tiny models with fixed weights, made without a hub: python tiny_models.py FOLDER

`llama` has one kind of attention. `gemma` mixes sliding and full attention, so that vLLM keeps two
KV cache groups. Weights are wide, so that greedy output depends on the whole prefix: equal tokens
then prove that the whole cache arrived.
"""

import sys
from pathlib import Path

SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
    "tie_word_embeddings": False,
}


def make(folder: Path) -> None:
    import torch
    from transformers import (
        Gemma3ForCausalLM,
        Gemma3TextConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    torch.manual_seed(20)
    layers = ["sliding_attention", "full_attention"] * 2
    gemma = Gemma3TextConfig(
        num_hidden_layers=4,
        sliding_window=128,
        layer_types=layers,
        query_pre_attn_scalar=64,
        **SIZES,
    )
    models = {
        "llama": LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **SIZES)),
        "gemma": Gemma3ForCausalLM(gemma),
    }
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0, 0.25)
        model.to(torch.bfloat16).save_pretrained(folder / name)
    (folder / "done").touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
