"""Names of other libraries that are private or undocumented, and that autotune reads or replaces: each is still there.

Such a name may go with any release of its library.
"""

import functools
import importlib
import inspect
import re
from importlib.metadata import version
from typing import Any

import pytest
from packaging.version import Version

from tests.test_architecture import PACKAGE

TRAINER, MODEL = "transformers.trainer:Trainer", "transformers.modeling_utils:PreTrainedModel"
WORKERS = "torch.utils.data.dataloader:_MultiProcessingDataLoaderIter"

NAMES = {
    "IPython.core.interactiveshell": "_render_traceback_",
    "_ssl": "_test_decode_cert",
    "accelerate.accelerator:Accelerator": "_is_accelerate_prepared _original_forward backward",
    "accelerate.state:AcceleratorState": "_shared_state",
    "accelerate.utils": "convert_outputs_to_fp32",
    "datasets.arrow_dataset": "_data_files",
    "datasets.arrow_dataset:Dataset": "_fingerprint",
    "datasets.config": "HF_HUB_OFFLINE HF_UPDATE_DOWNLOAD_COUNTS",
    "huggingface_hub.constants": "HF_HUB_OFFLINE",
    "numpy._core._exceptions": "_ArrayMemoryError",
    "optuna.study:Study": "_storage",
    "ray._private.state": "available_resources_per_node",
    "torch._C": "_ExcludeDispatchKeyGuard _accelerator_setAllocatorSettings _current_autograd_node "
    "_dispatch_get_registrations_for_dispatch_key",
    "torch._dynamo": "is_dynamo_supported list_backends",
    "torch._guards": "detect_fake_mode",
    "torch._ops:OpOverload": "_schema",
    "torch._subclasses.fake_tensor": "FakeTensor FakeTensorMode",
    "torch.cuda.memory": "_set_allocator_settings _snapshot",
    "torch.library:Library": "_destroy",
    "torch.nn:Module": "_apply _backward_hooks _backward_pre_hooks _buffers _forward_hooks _forward_pre_hooks _parameters to",
    "torch.optim.lr_scheduler:LRScheduler": "_wrapped_by_lr_sched",
    "torch.utils._python_dispatch": "TorchDispatchMode",
    "torch.utils._pytree": "tree_map",
    WORKERS: "_data_queue _task_info _worker_result_queue",
    "torch.utils.data:DataLoader": "_get_iterator",
    "torch:Tensor": "_post_accumulate_grad_hooks",
    "torch:UntypedStorage": "_cdata",
    "torch:ops.aten": "_log_softmax _scaled_dot_product_attention_math _scaled_dot_product_efficient_attention "
    "_scaled_dot_product_flash_attention _softmax _to_copy",
    "transformers.configuration_utils:PretrainedConfig": "_attn_implementation _experts_implementation _name_or_path",
    "transformers.initialization": "no_init_weights",
    "transformers.integrations": "INTEGRATION_TO_CALLBACK",
    "transformers.integrations.moe": "ALL_EXPERTS_FUNCTIONS _grouped_mm",
    "transformers.masking_utils": "_ignore_bidirectional_mask_sdpa _ignore_causal_mask_sdpa",
    "transformers.modeling_layers": "GradientCheckpointingLayer",
    "transformers.modeling_utils": "_can_set_experts_implementation _gradient_checkpointing_func _is_hf_initialized "
    "save_on_cpu",
    MODEL: "_from_config _init_weights _is_stateful _keep_in_fp32_modules _no_split_modules _supports_flash_attn "
    "_supports_flex_attn _supports_sdpa",
    "transformers.models.auto.modeling_auto": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "transformers.trainer": "_memory_tracker",
    TRAINER: "_created_lr_scheduler _get_train_sampler _inner_training_loop _loggers_initialized _prepare_inputs "
    "_set_signature_columns_if_needed _signature_columns _train_batch_size callback_handler "
    "compute_loss_context_manager get_batch_samples get_train_dataloader model_wrapped training_step",
    "transformers:HfArgumentParser": "parse_args_into_dataclasses",
    "transformers:TrainingArguments": "__post_init__",
    "trl.trainer.dpo_trainer:DPOTrainer": "_precompute_ref_logps",
    "trl.trainer.sft_trainer:SFTTrainer": "_prepare_dataset",
}
"""`module:attributes` of what has these, as attributes or in its source."""

PARAMETERS = {
    "_prepare_inputs": ("self", "inputs"),
    "get_batch_samples": ("self", "epoch_iterator", "num_batches"),
    "training_step": ("self", "model", "inputs"),
    "_apply": ("self", "fn", "recurse"),
    "backward": ("self", "loss"),
}
"""First parameters of what is replaced."""

SINCE = {"_accelerator_setAllocatorSettings": "2.10", "_ArrayMemoryError": "2.0", "save_on_cpu": "5.23"}
"""The version of the library that has a name first, where older ones have another way."""


def problem(place: str, name: str) -> str:
    """What is wrong with this name; empty if it is there as it is used."""
    module, _, attributes = place.partition(":")
    if name in SINCE and Version(version(module.partition(".")[0])) < Version(SINCE[name]):
        return ""
    try:
        owner: Any = functools.reduce(getattr, filter(None, attributes.split(".")), importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        return str(error)
    if not hasattr(owner, name):
        source = "" if inspect.isbuiltin(owner) else inspect.getsource(owner)
        return "" if re.search(rf"(?<!\w){name}(?!\w)", source) else f"{place}.{name} is gone"
    first = PARAMETERS.get(name, ())
    there = tuple(inspect.signature(getattr(owner, name)).parameters)[: len(first)] if first else ()
    return "" if there == first else f"{place}.{name} takes {there}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", NAMES)
def test_the_names_of_a_library_are_there_as_they_are_used(place: str) -> None:
    if (library := place.partition(".")[0]) in ("trl", "IPython", "ray"):
        pytest.importorskip(library)
    assert not [text for name in NAMES[place].split() if (text := problem(place, name))]


def test_every_listed_name_is_used() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    names = {name.replace("MODEL_FOR_CAUSAL_LM", "") for text in NAMES.values() for name in text.split()}
    assert not [name for name in names if name not in code]
