"""Answer of a search as the files for other tools need it."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.core.paths import named
from autotune.report.exports.deepspeed import resolved
from autotune.space.setup import TrainingSetup
from autotune.study.result import SearchResult
from autotune.workload.model.builtin import BUILT_IN

CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
"""Transformers' newer name and the one that every other tool reads."""

CHECKPOINTING_FIELDS = (*CHECKPOINTING, *(f"{name}_kwargs" for name in CHECKPOINTING))


@dataclass(frozen=True)
class Answer:
    """The setup of the best trial, and what a file for another tool needs besides."""

    setup: TrainingSetup
    model: str = ""  # its name, for people
    auto_class: str = "AutoModel"
    """`AutoModelFor...` that loads the model by its name; empty if no name does (user's own, built-in shape, config file)."""
    sequence_length: int | None = None  # tokens of the longest sample; None for images
    threads: int = 1  # of one operation on the CPU, as measured
    hidden_size: int | None = None  # None if unknown

    @property
    def fields(self) -> dict[str, Any]:
        """Training arguments that have a value; None leaves the default."""
        return {name: value for name, value in self.setup.training_arguments.items() if value is not None}

    @property
    def model_place(self) -> str:
        """Source from which a tool is to load the model: its name, or a placeholder if no name loads it."""
        return self.model if self.auto_class else "YOURS"

    @property
    def ranks(self) -> int:
        return self.setup.processes

    @property
    def micro_batch_size(self) -> int:
        return int(self.setup.training_arguments.get("per_device_train_batch_size", 8))

    @property
    def accumulation(self) -> int:
        return int(self.setup.training_arguments.get("gradient_accumulation_steps", 1))

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.accumulation * self.ranks

    @property
    def is_cpu(self) -> bool:
        return bool(self.setup.training_arguments.get("use_cpu"))

    @property
    def mixed_precision(self) -> str:
        """Accelerate's name: bf16, fp16 or no."""
        return next((name for name in ("bf16", "fp16") if self.setup.training_arguments.get(name)), "no")

    @property
    def precision_flags(self) -> dict[str, bool]:
        """Both fields, always written: some tools have other defaults."""
        return {name: self.mixed_precision == name for name in ("bf16", "fp16")}

    @property
    def has_16_bit_weights(self) -> bool:
        """True if weights are in bfloat16 and nothing is cast automatically."""
        return self.mixed_precision == "no" and self.setup.model_arguments.get("dtype") == "bfloat16"

    @property
    def checkpointing(self) -> bool:
        return any(self.setup.training_arguments.get(name) for name in CHECKPOINTING)

    @property
    def checkpointing_kwargs(self) -> dict[str, Any]:
        """Keywords of checkpointing, under either name; empty if there are none."""
        return next((dict(kwargs) for name in CHECKPOINTING if (kwargs := self.fields.get(f"{name}_kwargs"))), {})

    @property
    def quantization(self) -> dict[str, Any]:
        """Fields of `BitsAndBytesConfig`; empty if weights are not quantized."""
        return dict(self.setup.model_arguments.get("quantization_config") or {})

    @property
    def deepspeed(self) -> dict[str, Any] | None:
        """DeepSpeed's configuration with exact numbers; None if it is not used, or is a file of the user's own."""
        config = self.setup.training_arguments.get("deepspeed")
        if not isinstance(config, Mapping):
            return None
        return resolved(config, self.setup.training_arguments, self.ranks, self.hidden_size)

    @property
    def deepspeed_file(self) -> str | None:
        """The file for a tool to read: ours, or the user's own."""
        config = self.setup.training_arguments.get("deepspeed")
        return "ds_config.json" if isinstance(config, Mapping) else config or None

    @property
    def fsdp_config(self) -> dict[str, Any]:
        """Settings of fully sharded data parallelism by their short names; empty if it is not used."""
        config = self.setup.training_arguments.get("fsdp_config")
        if not self.setup.training_arguments.get("fsdp") or not isinstance(config, Mapping):
            return {}
        return {str(name).removeprefix("fsdp_"): value for name, value in config.items()}

    @property
    def environment(self) -> str:
        """`NAME=value NAME=value`, to write before a command; launchers set another number of threads if none is given."""
        variables = {"OMP_NUM_THREADS": str(self.threads)} | self.setup.variables
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())

    def parts(self, *opened: str) -> dict[str, Any]:
        """All that is set, by name, but precision, checkpointing and DeepSpeed, which every tool has words of its own for.

        An entry of the adapter is `adapter r`, one of the quantization `quantization load_in_4bit`, and also of `opened`:
        `checkpointing`, `fsdp_config`, `liger_kernel_config`. A switch is its line of Python.
        """
        setup, fields = self.setup, self.fields
        configs = {"checkpointing": self.checkpointing_kwargs, "fsdp_config": self.fsdp_config}
        configs["liger_kernel_config"] = fields.get("liger_kernel_config") or {}
        others = without({**setup.model_arguments, **setup.data_arguments}, ("quantization_config",))
        others |= _entries("adapter", setup.adapter) | _entries("quantization", self.quantization)
        others |= dict.fromkeys(switch_lines(setup.switches), True)
        parts = without(fields, ("bf16", "fp16", "deepspeed", *CHECKPOINTING_FIELDS, *opened))
        for name in opened:
            parts |= {entry: value for entry, value in _entries(name, configs[name]).items() if value is not None}
        return parts | {name: value for name, value in others.items() if value is not None and value is not False}


def _entries(group: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{group} {name}": value for name, value in values.items()}


def without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The values whose names are not among these."""
    return {name: value for name, value in values.items() if name not in names}


def joined(value: Any) -> Any:
    """A list as one text with commas; any other value as it is."""
    return ",".join(value) if isinstance(value, list) else value


def switch_lines(switches: Mapping[str, bool]) -> list[str]:
    """Calls to make before the training, in Python; switches: functions of torch.backends.cuda -> their argument."""
    return [f"torch.backends.cuda.{name}({on})" for name, on in switches.items()]


def auto_class(task: str) -> str:
    """The name of transformers' class for a task: `AutoModelForCausalLM` of `causal-lm`."""
    words = {"lm": "LM", "seq2seq": "Seq2Seq"}
    name = "".join(words.get(word, word.capitalize()) for word in task.split("-"))
    return f"AutoModelFor{name}" if task else "AutoModel"


def answer_of(result: SearchResult) -> Answer | None:
    """The answer of a search for other tools, or None if there is none or it is the user's own settings.

    Raises InvalidRequest for a study of another version, of whose answer a setting or value is unknown here.
    """
    workload = result.workload
    if not result.changes_settings:
        return None
    hidden_size = workload.model_config.get("hidden_size")
    # The caller's own model, a built-in shape and a config file have no name that loads them.
    is_nameless = workload.user_objects or workload.source in BUILT_IN or workload.source.endswith(".json")
    return Answer(
        result.best_setup,
        model=named(workload.name),
        auto_class="" if is_nameless else auto_class(workload.task),
        sequence_length=workload.sequence_length,
        threads=result.environment.threads,
        hidden_size=hidden_size if isinstance(hidden_size, int) else None,
    )
