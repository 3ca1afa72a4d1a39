"""Writes tiny MoE models with random weights: python models.py FOLDER"""

import sys
from pathlib import Path

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

COMMON = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "tiny-moe": {"num_experts": 32, "num_experts_per_tok": 4},
    "tiny-wide": {"num_experts": 300, "num_experts_per_tok": 6, "moe_intermediate_size": 32},
    "tiny-dense-first": {"num_experts": 32, "num_experts_per_tok": 4, "mlp_only_layers": [0]},
}


def write(name: str, folder: Path) -> None:
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**COMMON, **MODELS[name]})).float()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("gate.weight"):
                # Gates that choose differently for each token: a row in the wrong place shows.
                parameter.normal_(0, 1.0)
            elif parameter.ndim >= 2:
                parameter.normal_(0, 0.05)
    model.save_pretrained(folder / name)


if __name__ == "__main__":
    for name in MODELS:
        write(name, Path(sys.argv[1]))
