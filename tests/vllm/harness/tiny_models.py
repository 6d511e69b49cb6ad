"""Tiny models with fixed weights, made without a hub: python tiny_models.py FOLDER [llava]

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


IMAGE = 260  # Token that stands for a picture.


def make_llava(folder: Path) -> None:
    """A picture of 56 by 56 becomes 16 embeddings."""
    import torch
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(21)
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<s>", "</s>", "<pad>", "<unk>"]
    words += ["<image>", *(f"<x{number}>" for number in range(IMAGE + 1, SIZES["vocab_size"]))]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>", "<pad>", "<unk>", "<image>"])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    vision = CLIPVisionConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=56,
        patch_size=14,
        projection_dim=64,
    )
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=LlamaConfig(num_hidden_layers=2, **SIZES),
            image_token_index=IMAGE,
            image_token_id=IMAGE,
            vision_feature_select_strategy="default",
            vision_feature_layer=-2,
            tie_word_embeddings=False,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.25)
    path = folder / "llava"
    model.to(torch.bfloat16).save_pretrained(path)
    fast.save_pretrained(path)
    LlavaProcessor(
        image_processor=CLIPImageProcessor(
            size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56}
        ),
        tokenizer=fast,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    ).save_pretrained(path)
    # vLLM's names have one part more than those that transformers saves.
    weights = load_file(path / "model.safetensors")
    old, new = "vision_tower.", "vision_tower.vision_model."
    renamed = {
        name if new in name else name.replace(old, new): value for name, value in weights.items()
    }
    save_file(renamed, path / "model.safetensors", metadata={"format": "pt"})
    (folder / "done-llava").touch()


if __name__ == "__main__":
    (make_llava if "llava" in sys.argv[2:] else make)(Path(sys.argv[1]))
