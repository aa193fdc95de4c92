"""A caller's own model, data and Trainer that tell what each rank of a training saw, and may let one rank fail."""

import os
import signal
import time
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import Trainer

from tests.probe.misbehaviours import behaviour, tell

SAMPLES, MIB = 640, 2**20


class Numbered(torch.utils.data.Dataset):
    """Samples that carry their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        draw = torch.Generator().manual_seed(index)
        return {"x": torch.randn(8, generator=draw), "number": torch.tensor(index), "labels": torch.ones(1)}


class Telling(torch.nn.Module):
    """Two linear layers; notes the samples that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 4), torch.nn.Linear(4, 1)
        self.seen: list[int] = []
        self.micro_steps = 0

    def forward(self, x: torch.Tensor, number: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen += number.tolist()
        self.micro_steps += 1
        if self.micro_steps >= 3 and os.environ.get("RANK") == os.environ.get("FAILING_RANK"):
            fail()
        return {"loss": (self.second(torch.tanh(self.first(x))) - labels).square().mean()}


def fail() -> None:
    """What this rank is to do from its third micro-step on."""
    tell("failed", time.monotonic())
    match behaviour():
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "take memory":
            torch.ones(1024 * MIB, dtype=torch.uint8)
        case "raise":
            raise RuntimeError("this rank is not amused")


class TellingTrainer(Trainer):
    """Tells, at the end, of each step its samples and the gradients with which it stepped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[dict[str, Any]] = []

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        model = self.accelerator.unwrap_model(self.model)
        if self.accelerator.sync_gradients:
            self.steps.append({"samples": model.seen, "gradient": model.first.weight.grad.flatten().tolist()})
            model.seen = []
        return loss

    def train(self, *args: Any, **kwargs: Any) -> Any:
        done = super().train(*args, **kwargs)
        variables = {name: os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}
        backend = torch.distributed.get_backend() if torch.distributed.is_initialized() else None
        facts = {"steps": self.steps, "variables": variables, "backend": backend, "threads": torch.get_num_threads()}
        tell(f"rank-{variables['RANK'] or 'alone'}", facts | {"global_steps": self.state.global_step})
        return done


class ShardingTrainer(Trainer):
    """Shards on a CPU too: accelerate (1.15, `AcceleratorState`) does on accelerators alone."""

    def create_accelerator_and_postprocess(self) -> None:
        if self.args.fsdp:
            PartialState().distributed_type = DistributedType.MULTI_GPU
        super().create_accelerator_and_postprocess()


def model_init() -> Telling:
    torch.manual_seed(7)
    return Telling()
