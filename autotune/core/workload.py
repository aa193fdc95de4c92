"""Workload: a request's model and data, once read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.io import Serializable
from autotune.core.note import Note


@dataclass(frozen=True)
class Workload(Serializable):
    """The model and data of a study, as each probe gets them."""

    name: str
    task: str
    source: str = ""  #: of the config: built-in name, folder or hub id; for a user's model the way it is built
    model_config: Mapping[str, Any] = field(default_factory=dict)  #: the Hugging Face config; empty with a `model_init`
    trust_remote_code: bool = False
    architecture: str = ""
    sequence_length: int | None = None  #: longest sample in tokens; None for images
    parameters: int = 0
    parameter_bytes: int = 0  #: bytes in the dtype they are trained in
    gradient_bytes: int = 0  #: bytes of the parameters that learn
    linear_parameters: int = 0  #: weights of linear layers without the output's: the ones that four bits can hold
    supports_checkpointing: bool | None = None  #: None if unknown (a user's model)
    checkpointing: str = ""  #: value of that setting that the user's model has on before any training
    attention: str = "eager"  #: the implementation that the model takes by default
    attentions: Mapping[str, str | None] = field(default_factory=dict)  #: implementation -> reason why not, or None
    liger: Mapping[str, str | None] = field(default_factory=dict)  #: value of setting `liger` -> why not, or None
    expert: str = ""  #: experts implementation by default; empty without a mixture of experts
    experts: Mapping[str, str | None] = field(default_factory=dict)  #: implementation -> why not, or None
    adapter_targets: Mapping[str, str | None] = field(default_factory=dict)  #: `lora_targets` value -> why not, or None
    collating: Mapping[str, str | None] = field(default_factory=dict)  #: how batches are made -> why not, or None
    pad_to_multiple_of: int | None = None  #: of the user's collator
    data: str = ""  #: folder of the tokenised dataset, relative to the cache folder; empty for synthetic or user data
    data_identity: str = "synthetic"  #: path, size and time of the dataset, or its fingerprint
    text_source: str = ""  #: name of the tokenizer or image processor, for the report
    samples: int = 0  #: in the data before repetition
    longest: tuple[int, ...] = ()  #: indices of samples for the batch with the most memory; empty if all are alike
    lengths: tuple[float, ...] = ()  #: quantiles of the samples' lengths, of sequence_length; empty if all are alike
    weights: str = ""  #: folder or cached hub id of the model's weights; empty for random ones
    user_objects: bool = False  #: model_init, train_dataset, collator or Trainer class come from the user
    built: bool = False  #: a function of the user's builds the Trainer: nothing but its arguments can be set
    no_workers: str = ""  #: reason why the user's process cannot start data loader workers
    whole_steps: bool = False  #: micro-steps share work (one generates for all): probes run all of a step
    own_optimizer: str = ""  #: class of the user's optimizer; empty if `optim` names it
    weights_dtype: str = "float32"  #: of most weights of the user's model
    own_layers: str = ""  #: identity of the user's layers, and which of them learn
    own_parts: str = ""  #: identity of the user's further parts
    notes: tuple[Note, ...] = ()
