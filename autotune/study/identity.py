"""Identity of a study: what measurements must share to be compared."""

import json
from collections.abc import Mapping
from typing import Any

from autotune.core import Environment, TuningRequest, Workload
from autotune.core.paths import hidden
from autotune.space.search_space import SearchSpace
from autotune.space.user_arguments import files_of
from autotune.workload.data.sources import stamp

NOT_THE_MODEL = frozenset(["_name_or_path", "transformers_version"])
"""Fields of a config that say where it came from."""

OF_SAMPLES = ("text_column", "label_column", "tokenizer")
"""Fields of a request that make other samples of the same data; of a tokenizer's path the name counts."""


def study_identity(
    request: TuningRequest, environment: Environment, workload: Workload, space: SearchSpace
) -> Mapping[str, Any]:
    """Plain data of JSON; without trials, timeouts, sampler, seed, output."""
    files = {name: stamp([path]) for name, path in files_of(request.training_args).items()}
    identity = {
        "model_config": {name: value for name, value in workload.model_config.items() if name not in NOT_THE_MODEL},
        "architecture": f"{workload.architecture}, {workload.parameters} parameters",
        "task": workload.task,
        "data": workload.data_identity,
        **{name: hidden(value) for name in OF_SAMPLES if (value := getattr(request, name)) is not None},
        "sequence_length": workload.sequence_length,
        "global_batch_size": request.global_batch_size,
        "environment": environment.identity(),
        "memory_limit_bytes": request.memory_limit_bytes,
        "headroom": request.headroom,
        "objective": request.objective,
        "space": space.identity(),
        "training_args": dict(request.training_args),
        **({"argument_files": files} if files else {}),
        **({"own_model": _own_model(workload)} if workload.user_objects else {}),
        **({"own_parts": workload.own_parts} if workload.own_parts else {}),
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity, default=str))
    return plain


def _own_model(workload: Workload) -> dict[str, Any]:
    """Properties of a built model that a caller can change without changing its config."""
    return {
        "gradient_bytes": workload.gradient_bytes,
        "attention": workload.attention,
        "layers": workload.own_layers,
    }
