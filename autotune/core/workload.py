"""Workload: what a request's model and data turned out to be, once read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Workload:
    """The model and data of a study, as every probe gets them.

    model_config: the whole Hugging Face config as a dict; empty where the user brought a `model_init`.
    source: where the config came from (built-in name, folder, hub id), from which remote code is opened; of a caller's own
    model what makes it, as `rebuilding` names it.
    sequence_length: longest sample in tokens; None for images.
    parameters, parameter_bytes: of the model in the dtype it is trained in; gradient_bytes: of those that learn.
    linear_parameters: weights of linear layers but the output's, which is what four bits are for.
    supports_checkpointing: None where unknown (a user's own model). checkpointing: value of that name that is on for the
    caller's own model before any training; empty where none is.
    attention: the implementation that the model takes where nobody chose; attentions: implementation -> None where model
    and installation know it, else why not.
    liger: value of the setting `liger` -> None where Liger has such kernels for the model (by its own table), else why not.
    expert, experts: the same of a mixture of experts; empty where the model has none to choose for.
    adapter_targets: value of the setting `lora_targets` -> None where the model has such layers, else why not.
    collating: what batches can be (`pad_to_multiple_of`, `packing`, without `attention_mask`) -> None where those of this
    data and model can be made so, else why not. pad_to_multiple_of: what the user's own collator says by itself.
    data: a folder with the tokenised dataset, below the cache folder where it is relative; empty for synthetic samples
    or the user's own dataset.
    data_identity: what tells one dataset from another (path, size, time; or fingerprint).
    text_source: name of the tokenizer or image processor, for the report.
    samples: samples in the data before repetition.
    longest: places of the samples that make the batch hungriest for memory; empty where all are alike or it is unknown.
    weights: where the model's own weights lie (a folder, or a hub id that is in the cache); empty for random ones.
    user_objects: True where model_init, train_dataset, collator or Trainer class come from the caller.
    whole_steps: True where micro-steps share work (one generates for all), so that probes make all of a step.
    own_optimizer: class of the caller's own optimizer, empty where the arguments' `optim` names it. weights_dtype: of the
    caller's own model. own_layers: what tells its layers, and which of them learn, from others; own_parts: the same of the
    caller's further parts.
    """

    name: str
    task: str
    source: str = ""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    trust_remote_code: bool = False
    architecture: str = ""
    sequence_length: int | None = None
    parameters: int = 0
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    linear_parameters: int = 0
    supports_checkpointing: bool | None = None
    checkpointing: str = ""
    attention: str = "eager"
    attentions: Mapping[str, str | None] = field(default_factory=dict)
    liger: Mapping[str, str | None] = field(default_factory=dict)
    expert: str = ""
    experts: Mapping[str, str | None] = field(default_factory=dict)
    adapter_targets: Mapping[str, str | None] = field(default_factory=dict)
    collating: Mapping[str, str | None] = field(default_factory=dict)
    pad_to_multiple_of: int | None = None
    data: str = ""
    data_identity: str = "synthetic"
    text_source: str = ""
    samples: int = 0
    longest: tuple[int, ...] = ()
    weights: str = ""
    user_objects: bool = False
    whole_steps: bool = False
    own_optimizer: str = ""
    weights_dtype: str = "float32"
    own_layers: str = ""
    own_parts: str = ""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Workload":
        return cls(**{**data, "notes": tuple(data["notes"]), "longest": tuple(data.get("longest", ()))})
