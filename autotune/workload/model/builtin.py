"""The built-in models: shapes that need no network, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class BuiltIn:
    """One model by name: the Hugging Face model type, the config's fields that differ from its defaults."""

    model_type: str
    task: str
    description: str
    config: Mapping[str, Any]


# The first three tokens of the small vocabularies, as the byte-pair tokenizer of `texts.py` orders them.
_SPECIAL_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

_LLAMA_3 = {
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}


def _llama_3_rope(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


BUILT_IN: Mapping[str, BuiltIn] = MappingProxyType(
    {
        "bert-mini": BuiltIn(
            "bert",
            "masked-lm",
            "a BERT of 3 layers, 256 wide; a step takes a fraction of a second on a CPU",
            {
                "vocab_size": 8192,
                "hidden_size": 256,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "intermediate_size": 1024,
                "max_position_embeddings": 512,
                **_SPECIAL_TOKENS,
            },
        ),
        "gpt2-mini": BuiltIn(
            "gpt2",
            "causal-lm",
            "a GPT-2 of 3 layers, 256 wide; a step takes a fraction of a second on a CPU",
            {
                "vocab_size": 8192,
                "n_embd": 256,
                "n_layer": 3,
                "n_head": 4,
                "n_positions": 1024,
                **_SPECIAL_TOKENS,
            },
        ),
        "llama-mini": BuiltIn(
            "llama",
            "causal-lm",
            "a Llama of 3 layers, 256 wide, with grouped keys; a step takes a fraction of a second on a CPU",
            {
                "vocab_size": 8192,
                "hidden_size": 256,
                "intermediate_size": 688,
                "num_hidden_layers": 3,
                "num_attention_heads": 8,
                "num_key_value_heads": 2,
                "max_position_embeddings": 2048,
                **_SPECIAL_TOKENS,
            },
        ),
        "t5-mini": BuiltIn(
            "t5",
            "seq2seq-lm",
            "a T5 of 2 and 2 layers, 192 wide; a step takes a fraction of a second on a CPU",
            {
                "vocab_size": 8192,
                "d_model": 192,
                "d_kv": 48,
                "d_ff": 768,
                "num_layers": 2,
                "num_decoder_layers": 2,
                "num_heads": 4,
                "decoder_start_token_id": 0,
                **_SPECIAL_TOKENS,
            },
        ),
        "vit-mini": BuiltIn(
            "vit",
            "image-classification",
            "a ViT of 4 layers, 192 wide, on 64 x 64 pixels; a step takes a fraction of a second on a CPU",
            {
                "image_size": 64,
                "patch_size": 8,
                "hidden_size": 192,
                "num_hidden_layers": 4,
                "num_attention_heads": 3,
                "intermediate_size": 768,
                "num_labels": 10,
            },
        ),
        "moe-mini": BuiltIn(
            "qwen2_moe",
            "causal-lm",
            "a mixture of 8 small experts, 2 for each token, in 3 layers",
            {
                "vocab_size": 8192,
                "hidden_size": 192,
                "intermediate_size": 384,
                "moe_intermediate_size": 192,
                "shared_expert_intermediate_size": 384,
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "num_hidden_layers": 3,
                "num_attention_heads": 6,
                "num_key_value_heads": 2,
                "max_position_embeddings": 2048,
                **_SPECIAL_TOKENS,
            },
        ),
        "bert-base": BuiltIn(
            "bert", "masked-lm", "the shape of BERT base, 110 million parameters", {"vocab_size": 30522}
        ),
        "bert-large": BuiltIn(
            "bert",
            "masked-lm",
            "the shape of BERT large, 335 million parameters",
            {
                "vocab_size": 30522,
                "hidden_size": 1024,
                "num_hidden_layers": 24,
                "num_attention_heads": 16,
                "intermediate_size": 4096,
            },
        ),
        "gpt2": BuiltIn(
            "gpt2",
            "causal-lm",
            "the shape of GPT-2, 124 million parameters",
            {"vocab_size": 50257, "n_positions": 1024, "bos_token_id": 50256, "eos_token_id": 50256},
        ),
        "t5-small": BuiltIn(
            "t5",
            "seq2seq-lm",
            "the shape of T5 small, 60 million parameters",
            {
                "vocab_size": 32128,
                "d_model": 512,
                "d_kv": 64,
                "d_ff": 2048,
                "num_layers": 6,
                "num_decoder_layers": 6,
                "num_heads": 8,
                "pad_token_id": 0,
                "eos_token_id": 1,
                "decoder_start_token_id": 0,
            },
        ),
        "t5-base": BuiltIn(
            "t5",
            "seq2seq-lm",
            "the shape of T5 base, 223 million parameters",
            {
                "vocab_size": 32128,
                "d_model": 768,
                "d_kv": 64,
                "d_ff": 3072,
                "num_layers": 12,
                "num_decoder_layers": 12,
                "num_heads": 12,
                "pad_token_id": 0,
                "eos_token_id": 1,
                "decoder_start_token_id": 0,
            },
        ),
        "vit-base": BuiltIn(
            "vit",
            "image-classification",
            "the shape of ViT base on 224 x 224 pixels, 87 million parameters",
            {"image_size": 224, "patch_size": 16, "num_labels": 1000},
        ),
        "llama-1b": BuiltIn(
            "llama",
            "causal-lm",
            "the shape of Llama 3.2 1B, 1.24 billion parameters",
            {
                **_LLAMA_3,
                "hidden_size": 2048,
                "intermediate_size": 8192,
                "num_hidden_layers": 16,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 64,
                "tie_word_embeddings": True,
                "rope_parameters": _llama_3_rope(32.0),
            },
        ),
        "llama-8b": BuiltIn(
            "llama",
            "causal-lm",
            "the shape of Llama 3.1 8B, 8.03 billion parameters",
            {
                **_LLAMA_3,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "rope_parameters": _llama_3_rope(8.0),
            },
        ),
    }
)
