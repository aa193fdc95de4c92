"""Runs the accelerate_loop.py in the folder given, on a tiny model and random data, and writes what it saw there."""

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import GPT2Config, GPT2LMHeadModel

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
import accelerate_loop as loop  # noqa: E402

SEEN: dict[str, Any] = {"micro_batches": [], "layer_runs": Counter(), "optimizers": [], "rates": []}


def tiny_model() -> torch.nn.Module:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=16))
    model.transformer.h[0].attn.register_forward_pre_hook(lambda *_: SEEN["layer_runs"].update(["layer"]))
    model.register_forward_pre_hook(
        lambda module, args, kwargs: SEEN["micro_batches"].append(len(kwargs["input_ids"])), with_kwargs=True
    )
    model.transformer.h[0].mlp.c_fc.register_forward_hook(
        lambda module, inputs, output: SEEN.update(
            dtype=str(output.dtype),
            device=output.device.type,
            autocast=torch.is_autocast_enabled(output.device.type),
        )
    )
    return model


def random_data() -> list[dict[str, Any]]:
    tokens = torch.randint(0, 32, (24 * loop.RANKS, 8))
    return [{"input_ids": row.tolist(), "labels": row.tolist()} for row in tokens]


def see_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    SEEN["optimizers"].append(f"{type(optimizer).__module__}.{type(optimizer).__name__}")
    SEEN["fused"] = bool(optimizer.defaults.get("fused"))
    SEEN["decay"] = [group.get("weight_decay") for group in optimizer.param_groups]
    SEEN["rates"].append(optimizer.param_groups[0]["lr"])


register_optimizer_step_post_hook(see_step)
loop.your_model, loop.your_dataset = tiny_model, random_data
loop.TRAINING_ARGUMENTS["num_train_epochs"] = 2
SEEN["finite"] = all(bool(weight.isfinite().all()) for weight in loop.train().parameters())
SEEN["layer_runs"] = SEEN["layer_runs"]["layer"]
(folder / f"seen-{os.environ.get('RANK', '0')}.json").write_text(json.dumps(SEEN))
