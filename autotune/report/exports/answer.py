"""The answer as plain values, as every file for another tool is made from it."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.paths import named
from autotune.report.exports.deepspeed import resolved
from autotune.study.result import SearchResult
from autotune.workload.model.builtin import BUILT_IN

CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
"""Transformers' newer name and the one that every other tool reads."""


@dataclass(frozen=True)
class Answer:
    """What was found, and what a file for another tool must know beside it.

    training_arguments, model_arguments, variables: as in the best_*.json files. adapter: fields of `peft.LoraConfig`, empty
    where all weights are trained. data_arguments: how samples become batches, where that is no training argument.
    switches: functions of torch.backends.cuda -> what to call them with.
    data_parallel_size: ranks. model: its name, for people. auto_class: `AutoModelFor...` that loads it by this name; empty
    where none does: a model of the caller's own, a built-in shape, a config file. sequence_length: tokens of the
    longest sample, None for images. threads: of one operation on the CPU, as measured. hidden_size: None where unknown.
    """

    training_arguments: Mapping[str, Any]
    model_arguments: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    data_arguments: Mapping[str, Any] = field(default_factory=dict)
    switches: Mapping[str, bool] = field(default_factory=dict)
    data_parallel_size: int = 1
    model: str = ""
    auto_class: str = "AutoModel"
    sequence_length: int | None = None
    threads: int = 1
    hidden_size: int | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Training arguments that say something: None stands for "as it is without"."""
        return {name: value for name, value in self.training_arguments.items() if value is not None}

    @property
    def model_place(self) -> str:
        """What a tool is told to load the model from: its name, or a word to be replaced where no name loads it."""
        return self.model if self.auto_class else "YOURS"

    @property
    def micro_batch_size(self) -> int:
        return int(self.training_arguments.get("per_device_train_batch_size", 8))

    @property
    def accumulation(self) -> int:
        return int(self.training_arguments.get("gradient_accumulation_steps", 1))

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.accumulation * self.data_parallel_size

    @property
    def is_cpu(self) -> bool:
        return bool(self.training_arguments.get("use_cpu"))

    @property
    def mixed_precision(self) -> str:
        """accelerate's word: bf16, fp16 or no."""
        return next((name for name in ("bf16", "fp16") if self.training_arguments.get(name)), "no")

    @property
    def checkpointing(self) -> bool:
        return any(self.training_arguments.get(name) for name in CHECKPOINTING)

    @property
    def checkpointing_kwargs(self) -> dict[str, Any]:
        """Keywords of checkpointing, by whichever name they stand; empty where there are none."""
        return next((dict(kept) for name in CHECKPOINTING if (kept := self.fields.get(f"{name}_kwargs"))), {})

    @property
    def attention(self) -> str | None:
        """The implementation that a setting chose; None: the model's own."""
        return self.model_arguments.get("attn_implementation")

    @property
    def quantization(self) -> dict[str, Any]:
        """Fields of `BitsAndBytesConfig`; empty where weights are whole."""
        return dict(self.model_arguments.get("quantization_config") or {})

    @property
    def flattening(self) -> bool:
        """Whether a micro-batch's samples lie behind each other in one row, without padding."""
        return bool(self.data_arguments.get("packing"))

    @property
    def deepspeed(self) -> dict[str, Any] | None:
        """DeepSpeed's configuration with exact numbers; None where it is not used, or is a file of the user's own."""
        config = self.training_arguments.get("deepspeed")
        if not isinstance(config, Mapping):
            return None
        return resolved(config, self.training_arguments, self.data_parallel_size, self.hidden_size)

    @property
    def deepspeed_file(self) -> str | None:
        """What a tool is told to read: our file, or the user's own."""
        config = self.training_arguments.get("deepspeed")
        return "ds_config.json" if isinstance(config, Mapping) else config or None

    @property
    def fsdp_config(self) -> dict[str, Any]:
        """Settings of fully sharded data parallelism by their short names; empty where it is not used."""
        config = self.training_arguments.get("fsdp_config")
        if not self.training_arguments.get("fsdp") or not isinstance(config, Mapping):
            return {}
        return {str(name).removeprefix("fsdp_"): value for name, value in config.items()}

    @property
    def environment(self) -> str:
        """`NAME=value NAME=value`, to stand before a command: without threads named, launchers choose their own."""
        every = {"OMP_NUM_THREADS": str(self.threads)} | dict(self.variables)
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in every.items())

    @property
    def switch_lines(self) -> list[str]:
        """What to call before the training, in Python."""
        return switch_lines(self.switches)

    def others(self, *said: str) -> dict[str, Any]:
        """Model, data and adapter arguments that say something and are not among those said."""
        every = {**self.model_arguments, **self.data_arguments}
        every |= {f"adapter {name}": value for name, value in self.adapter.items()}
        every |= {f"quantization {name}": value for name, value in self.quantization.items()}
        every |= dict.fromkeys(self.switch_lines, True)
        kept = (*said, "quantization_config")
        return {name: value for name, value in every.items() if name not in kept and value not in (None, False)}

    def without(self, names: Collection[str]) -> dict[str, Any]:
        """The training arguments that say something and are not among these."""
        return {name: value for name, value in self.fields.items() if name not in names}


def switch_lines(switches: Mapping[str, bool]) -> list[str]:
    """What to call before the training, in Python; switches: functions of torch.backends.cuda -> their argument."""
    return [f"torch.backends.cuda.{name}({on})" for name, on in switches.items()]


def auto_class(task: str) -> str:
    """The name of transformers' class for a task: `AutoModelForCausalLM` of `causal-lm`."""
    words = {"lm": "LM", "seq2seq": "Seq2Seq"}
    return (
        "AutoModelFor" + "".join(words.get(word, word.capitalize()) for word in task.split("-"))
        if task
        else "AutoModel"
    )


def answer_of(result: SearchResult) -> Answer | None:
    """The answer of a search for other tools; None where there is none.

    Raises InvalidRequest for a study of another version, of whose answer a setting or value is unknown here.
    """
    best, setup, workload = result.best_trial, result.best_setup, result.workload
    if best is None:
        return None
    hidden_size = workload.model_config.get("hidden_size")
    # The caller's own model, a built-in shape and a config file have no name that loads them.
    is_nameless = workload.user_objects or workload.source in BUILT_IN or workload.source.endswith(".json")
    return Answer(
        training_arguments=setup.training_arguments,
        model_arguments=setup.model_arguments,
        variables=setup.variables,
        adapter=setup.adapter,
        data_arguments=setup.data_arguments,
        switches=setup.switches,
        data_parallel_size=best.configuration.data_parallel_size,
        model=named(workload.name),
        auto_class="" if is_nameless else auto_class(workload.task),
        sequence_length=workload.sequence_length,
        threads=result.environment.threads,
        hidden_size=hidden_size if isinstance(hidden_size, int) else None,
    )
