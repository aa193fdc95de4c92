"""Names of other libraries that are private or undocumented, and that autotune reads or replaces: each is still there.

A private name may go with any release of its library. If one does, a test fails with the name, the files that use it and
their reason. A private name that is in none of these lists fails, too.
"""

import ast
import functools
import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.test_architecture import PACKAGE, TREES

ROOT = PACKAGE.parent


@dataclass(frozen=True)
class Name:
    """A name of a library, and the reason to use it.

    place: `module:attributes` of what has it, as an attribute or in its source; first: its parameters begin with these;
    since: the version of the library that has it first, if an older one is admitted, for which there is another way.
    """

    place: str
    name: str
    reason: str
    first: tuple[str, ...] = ()
    since: str = ""

    @property
    def library(self) -> str:
        return self.place.partition(":")[0].partition(".")[0]

    def __str__(self) -> str:
        return f"{self.place}.{self.name}"


TRAINER, MODEL = "transformers.trainer:Trainer", "transformers.modeling_utils:PreTrainedModel"
CONFIG = "transformers.configuration_utils:PretrainedConfig"

PRIVATE = (
    Name("_ssl", "_test_decode_cert", "the day on which a certificate's file ends: ssl has no other reader"),
    Name("ray._private.state", "available_resources_per_node", "free devices of each node: ray has no other report of them"),
    # The Trainer
    Name(TRAINER, "_created_lr_scheduler", "a scheduler that the Trainer made is made again, the user's is sent"),
    Name(TRAINER, "_get_train_sampler", "the order of a probe's steps is spread over an epoch sorted by length"),
    Name(TRAINER, "_inner_training_loop", "a method that decides what is trained: a replaced one is refused"),
    Name(TRAINER, "_loggers_initialized", "set by a training: no difference from a new Trainer"),
    Name("transformers.trainer", "_memory_tracker", "set by a training: no difference from a new Trainer"),
    Name(TRAINER, "_prepare_inputs", "the graph that will be compiled is read on a batch like a training's", ("self", "inputs")),
    Name(TRAINER, "_set_signature_columns_if_needed", "columns that a Trainer keeps are compared with a new one's"),
    Name(TRAINER, "_signature_columns", "columns that a Trainer keeps are compared with a new one's"),
    Name(TRAINER, "_train_batch_size", "a built Trainer takes another micro-batch size"),
    Name("trl.trainer.sft_trainer:SFTTrainer", "_prepare_dataset", "a prepared dataset is not prepared again"),
    Name("trl.trainer.dpo_trainer:DPOTrainer", "_precompute_ref_logps", "a prepared dataset is not prepared again"),
    # transformers' models
    Name("transformers.modeling_utils", "_can_set_experts_implementation", "if a model's experts can be computed otherwise"),
    Name("transformers.modeling_utils", "_gradient_checkpointing_func", "how a built model checkpoints its layers"),
    Name(MODEL, "_from_config", "a model is built again, in its own class"),
    Name(MODEL, "_init_weights", "weights are drawn layer by layer, so that a model needs no memory twice"),
    Name("transformers.modeling_utils", "_is_hf_initialized", "weights that are drawn are not drawn again"),
    Name(MODEL, "_is_stateful", "a model with a state cannot keep packed samples apart"),
    Name(MODEL, "_keep_in_fp32_modules", "layers that four bits leave out"),
    Name(MODEL, "_no_split_modules", "the units that FSDP gathers"),
    Name(MODEL, "_supports_flash_attn", "attentions of a model"),
    Name(MODEL, "_supports_flex_attn", "attentions of a model"),
    Name(MODEL, "_supports_sdpa", "attentions of a model"),
    Name(CONFIG, "_attn_implementation", "the attention that a model runs is read back"),
    Name(CONFIG, "_experts_implementation", "the experts' implementation that a model runs is read back"),
    Name(CONFIG, "_name_or_path", "a config is named after the files that it comes from"),
    Name("transformers.integrations.moe", "_grouped_mm", "experts are traced without storage"),
    Name("transformers.masking_utils", "_ignore_causal_mask_sdpa", "masks are traced without storage"),
    Name("transformers.masking_utils", "_ignore_bidirectional_mask_sdpa", "masks are traced without storage"),
    # accelerate
    Name("accelerate.accelerator:Accelerator", "_is_accelerate_prepared", "precision of a model that has trained before"),
    Name("accelerate.accelerator:Accelerator", "_original_forward", "precision of a model that has trained before"),
    Name("accelerate.state:AcceleratorState", "_shared_state", "a second Trainer in the caller's process changes nothing"),
    # torch
    Name("torch", "_C", "module of the four names below"),
    Name("torch._C", "_ExcludeDispatchKeyGuard", "autocast off within an operation, for traces"),
    Name("torch._C", "_current_autograd_node", "a layer that is computed again is told from its first time"),
    Name("torch._C", "_dispatch_get_registrations_for_dispatch_key", "operations that CUDA's autocast has and the CPU's not"),
    Name("torch._C", "_accelerator_setAllocatorSettings", "the allocator's settings in a forked child", since="2.10"),
    Name("torch.cuda.memory", "_set_allocator_settings", "the allocator's settings in a forked child, before torch 2.10"),
    Name("torch.cuda.memory", "_snapshot", "the allocator's settings are read back"),
    Name("torch._dynamo", "list_backends", "backends of torch.compile"),
    Name("torch._dynamo", "is_dynamo_supported", "backends of torch.compile"),
    Name("torch._guards", "detect_fake_mode", "a model without storage is built in the mode around it"),
    Name("torch._subclasses.fake_tensor", "FakeTensor", "tensors without storage, for traces"),
    Name("torch._subclasses.fake_tensor", "FakeTensorMode", "tensors without storage, for traces"),
    Name("torch.utils._python_dispatch", "TorchDispatchMode", "each operation of a traced step"),
    Name("torch.utils._pytree", "tree_map", "tensors among an operation's arguments"),
    Name("torch.utils.data:DataLoader", "_get_iterator", "ready batches are counted"),
    Name("torch.utils.data.dataloader:_MultiProcessingDataLoaderIter", "_data_queue", "ready batches are counted"),
    Name("torch.utils.data.dataloader:_MultiProcessingDataLoaderIter", "_worker_result_queue", "ready batches are counted"),
    Name("torch.utils.data.dataloader:_MultiProcessingDataLoaderIter", "_task_info", "ready batches are counted"),
    Name("torch:UntypedStorage", "_cdata", "the identity of a storage that has no address"),
    Name("torch.library:Library", "_destroy", "kernels for a trace are taken back"),
    Name("torch._ops:OpOverload", "_schema", "the place of an operation's dtype"),
    Name("torch.optim.lr_scheduler:LRScheduler", "_wrapped_by_lr_sched", "a schedule's patch of an optimizer's step is not sent"),
    Name("torch.nn:Module", "_apply", "adapters are added to a model without storage", ("self", "fn", "recurse")),
    Name("torch.nn:Module", "_buffers", "adapters are added to a model without storage"),
    Name("torch.nn:Module", "_parameters", "adapters are added to a model without storage, weights to one that was sent without"),
    Name("torch.nn:Module", "_forward_hooks", "a model with hooks is another model"),
    Name("torch.nn:Module", "_forward_pre_hooks", "a model with hooks is another model"),
    Name("torch.nn:Module", "_backward_hooks", "a model with hooks is another model"),
    Name("torch.nn:Module", "_backward_pre_hooks", "a model with hooks is another model"),
    Name("torch:Tensor", "_post_accumulate_grad_hooks", "a model with hooks of its parameters is not sent"),
    Name("torch:ops.aten", "_scaled_dot_product_attention_math", "attention is traced as on CUDA"),
    Name("torch:ops.aten", "_scaled_dot_product_efficient_attention", "attention is traced as on CUDA"),
    Name("torch:ops.aten", "_scaled_dot_product_flash_attention", "attention is traced as on CUDA"),
    Name("torch:ops.aten", "_softmax", "a fused softmax is traced as on CUDA"),
    Name("torch:ops.aten", "_log_softmax", "a fused softmax is traced as on CUDA"),
    Name("torch:ops.aten", "_to_copy", "copies of weights are told from other tensors"),
    # Others
    Name("numpy._core._exceptions", "_ArrayMemoryError", "a process that ran out of memory, by its log", since="2.0"),
    Name("optuna.study:Study", "_storage", "a study that differs from its folder is deleted and written again"),
    Name("datasets.arrow_dataset:Dataset", "_fingerprint", "the cache of prepared data knows the data"),
    Name("datasets.arrow_dataset", "_data_files", "a saved dataset on a server names no file outside of its folder"),
    Name("IPython.core.interactiveshell", "_render_traceback_", "an error is one line in a notebook"),
)  # fmt: skip

UNDOCUMENTED = (
    Name(TRAINER, "get_batch_samples", "replaced: the wait for data is timed", ("self", "epoch_iterator", "num_batches")),
    Name(TRAINER, "training_step", "replaced: a micro-step is timed", ("self", "model", "inputs")),
    Name(TRAINER, "get_train_dataloader", "replaced: an epoch that is shorter than a probe is repeated", ("self",)),
    Name(TRAINER, "compute_loss_context_manager", "the graph that will be compiled is read in its autocast", ("self",)),
    Name(TRAINER, "callback_handler", "callbacks are read, and set in their order"),
    Name(TRAINER, "model_wrapped", "a new Trainer trains the user's model"),
    Name("transformers:TrainingArguments", "__post_init__", "replaced by autotune run: a trial's fields are set", ("self",)),
    Name("transformers:HfArgumentParser", "parse_args_into_dataclasses", "arguments that come from flags, by its frame"),
    Name("transformers.integrations", "INTEGRATION_TO_CALLBACK", "callbacks of trackers do not log probes"),
    Name("transformers.initialization", "no_init_weights", "a model without storage is built"),
    Name("transformers.modeling_utils", "save_on_cpu", "what checkpointing keeps on the host is traced", since="5.23"),
    Name("transformers.modeling_layers", "GradientCheckpointingLayer", "checkpointed layers, by the name of the class"),
    Name("transformers.models.auto.modeling_auto", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "tasks of an architecture"),
    Name("transformers.integrations.moe", "ALL_EXPERTS_FUNCTIONS", "implementations of experts"),
    Name("accelerate.accelerator:Accelerator", "backward", "replaced: the backward pass is timed", ("self", "loss")),
    Name("accelerate.utils", "convert_outputs_to_fp32", "a traced step returns what a prepared model returns"),
    Name("torch.nn:Module", "to", "replaced while a second Trainer is built: the user's model stays where it is"),
    Name("datasets.config", "HF_UPDATE_DOWNLOAD_COUNTS", "set: readers of local files ask the Hub nothing"),
    Name("datasets.config", "HF_HUB_OFFLINE", "set: no second wait for a Hub that does not answer"),
    Name("huggingface_hub.constants", "HF_HUB_OFFLINE", "set: no second wait for a Hub that does not answer"),
)  # fmt: skip

ALL = (*PRIVATE, *UNDOCUMENTED)

STANDARD = {"_exit", "_getframe", "_asdict", "_replace", "_fields", "_value_", "_ssl"}
"""Names of Python itself."""

CUDA_ALONE = {"_cuda_clearCublasWorkspaces"}
"""Names that only torch's builds with CUDA have."""

OLDER = {"_supports_flash_attn_2"}
"""Names of versions that are not pinned, beside the newer names."""


def of_version(name: Name) -> bool:
    """True if the installed version has this name."""
    return not name.since or Version(version(name.library)) >= Version(name.since)


def users(name: str) -> list[str]:
    """Files of autotune in which a name stands."""
    pattern = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    texts = {path: _text(path) for path in _sources()}
    return [str(path.relative_to(ROOT)) for path, text in texts.items() if name in text and pattern.search(text)]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@functools.cache
def _sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def owner(place: str) -> Any:
    module, _, attributes = place.partition(":")
    thing = importlib.import_module(module)
    return functools.reduce(getattr, filter(None, attributes.split(".")), thing)


def has(thing: Any, name: str) -> bool:
    """True if it has an attribute of this name, or its source names it, as that of a class which sets it in a method."""
    if hasattr(thing, name):
        return True
    try:
        return bool(re.search(rf"(?<!\w){name}(?!\w)", inspect.getsource(thing)))
    except (OSError, TypeError):  # compiled
        return False


def missing(name: Name) -> str:
    """What is wrong with this name; empty if it is there as it is used, or in another version of its library."""
    if not of_version(name):
        return ""
    try:
        thing = owner(name.place)
    except (ImportError, AttributeError) as error:
        return str(error)
    if not has(thing, name.name):
        return "it is gone"
    parameters = tuple(inspect.signature(getattr(thing, name.name)).parameters) if name.first else ()
    return "" if parameters[: len(name.first)] == name.first else f"its parameters are {parameters}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", sorted({name.library for name in ALL}))
def test_the_names_of_a_library_are_there_as_they_are_used(library: str) -> None:
    if library in ("trl", "IPython", "ray"):
        pytest.importorskip(library)
    problems = {name: missing(name) for name in ALL if name.library == library}
    assert not [
        f"{name}: {name.reason} ({', '.join(users(name.name))}): {problem}"
        for name, problem in problems.items()
        if problem
    ]


def test_every_private_name_has_its_reason() -> None:
    listed = {part for name in PRIVATE for part in (name.name, *re.split(r"[.:]", name.place))}
    found = {name: place for place, name in private_names()}
    unlisted = {name: place for name, place in found.items() if name not in listed | STANDARD | CUDA_ALONE | OLDER}
    assert not unlisted


def test_every_listed_name_is_used() -> None:
    built = {"MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "_MAPPING_NAMES"}
    assert not [name.name for name in ALL if not users(built.get(name.name, name.name))]


def test_names_of_newer_versions_are_in_the_pinned_ones() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {item.name.lower(): next(iter(item.specifier)).version for item in map(Requirement, lines[1:])}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = {item.name: item.specifier for item in map(Requirement, project["dependencies"])}
    for name in ALL:
        if name.since:
            assert Version(pinned[name.library]) >= Version(name.since)
            assert any(Version(bound.version) < Version(name.since) for bound in lowest[name.library]), name


# The scan ---------------------------------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def own_names() -> set[str]:
    """Names that autotune defines, and that of its modules."""
    names: set[str] = set()
    for node in (node for tree in TREES.values() for node in ast.walk(tree)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            is_own = isinstance(node, ast.Name) or ast.unparse(node.value) in ("self", "cls")
            names |= {node.id if isinstance(node, ast.Name) else node.attr} if is_own else set()
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


READS = ("getattr", "setattr", "hasattr", "delattr")


def private_names() -> Iterator[tuple[str, str]]:
    """(module, private name of somebody else) of every attribute, import, and name that is given to getattr and the like."""
    own = own_names()
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Attribute):
                names = [node.attr]
            elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(("autotune", "__")):
                names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [part for alias in node.names for part in alias.name.split(".")]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READS:
                names = [str(word.value) for word in node.args[1:2] if isinstance(word, ast.Constant)]
            yield from ((module, name) for name in names if is_private(name) and name not in own)
