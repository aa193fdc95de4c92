"""Training data of a probe: dataset, collator and tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import datasets
import transformers
from transformers import AutoTokenizer, default_data_collator

from autotune.core.paths import cache_folder
from autotune.core.workload import Workload
from autotune.space.collators import WithoutFullMask
from autotune.space.settings import attention_mask
from autotune.workload.data.images import ImageSamples
from autotune.workload.data.synthetic import SyntheticSamples
from autotune.workload.model.build import config_of
from autotune.workload.model.config import image_shape


def training_data(workload: Workload, samples_needed: int, seed: int, pool: int | None = None) -> tuple[Any, Any, Any]:
    """(dataset, data collator, tokenizer or None) for the Trainer.

    samples_needed: number of random samples, which come from a fixed pool; pool: largest number of different ones among them.
    """
    if not workload.data:
        config, length = config_of(workload), workload.sequence_length
        samples = SyntheticSamples(config, workload.task, length, samples_needed, seed, pool)
        return samples, default_data_collator, None
    datasets.disable_progress_bars()
    folder = cache_folder() / workload.data
    data = datasets.load_from_disk(str(folder / "data"))
    if workload.task == "image-classification":
        shape = image_shape(config_of(workload))
        return ImageSamples(data, shape), default_data_collator, None
    tokenizer = AutoTokenizer.from_pretrained(
        str(folder / "tokenizer"), trust_remote_code=workload.trust_remote_code, local_files_only=True
    )
    return data, _collator(workload.task, tokenizer, "labels" in data.column_names), tokenizer


@dataclass(frozen=True)
class MaskedCollator:
    """Hides 15 % of the tokens of a batch, and at least one of each sample.

    If a micro-batch is a single short text, chance may hide nothing, and the loss of nothing is NaN.
    """

    inner: Any

    def __call__(self, samples: list[Any]) -> Any:
        batch = self.inner(samples)
        labels, inputs = batch["labels"], batch["input_ids"]
        bare = (labels == -100).all(dim=1).nonzero().flatten()
        middle = batch["attention_mask"].sum(dim=1)[bare] // 2
        labels[bare, middle] = inputs[bare, middle]
        return batch


def collated_as_asked(collator: Any, data_arguments: Mapping[str, Any]) -> Any:
    """The collator, autotune's or the user's, with the data arguments that it supports."""
    if data_arguments.get("packing"):
        return transformers.DataCollatorWithFlattening()
    inner = getattr(collator, "inner", collator)
    if "pad_to_multiple_of" in data_arguments and hasattr(inner, "pad_to_multiple_of"):
        inner.pad_to_multiple_of = data_arguments["pad_to_multiple_of"]
    return WithoutFullMask(collator) if data_arguments.get(attention_mask.FIELD) else collator


def _collator(task: str, tokenizer: Any, labelled: bool) -> Any:
    match task:
        case "masked-lm":
            return MaskedCollator(
                transformers.DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15)
            )
        case "causal-lm" if not labelled:
            return transformers.DataCollatorForLanguageModeling(tokenizer, mlm=False)
        case "seq2seq-lm":
            # Without the model: it then makes the decoder's inputs from the labels.
            return transformers.DataCollatorForSeq2Seq(tokenizer)
        case "token-classification" | "causal-lm":
            return transformers.DataCollatorForTokenClassification(tokenizer)
    return transformers.DataCollatorWithPadding(tokenizer)
