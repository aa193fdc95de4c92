"""`search`: from a request to its result."""

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

from autotune.commands.finished import finished_study, request_fingerprint
from autotune.core.random_state import kept_random_state
from autotune.core.request import CONFIRMATION_ROUNDS, OPTIONS, TuningRequest, tuning_request
from autotune.core.time_limit import TimeLimit
from autotune.executors import Executor
from autotune.executors.local import first_host, lock_card
from autotune.probe.process.launcher import ProbeHost
from autotune.space.user_arguments import UserArguments, left_out, read_user_arguments
from autotune.study.limits import check_request
from autotune.study.plan import Progress, Watch
from autotune.workload.model.pickling import Payload, packed

if TYPE_CHECKING:
    from autotune.commands.result import TuningResult


@kept_random_state()
def search(
    model: str | os.PathLike[str] | Callable[..., Any] | Payload,
    global_batch_size: int,
    *,
    task: str | None = None,
    sequence_length: int | None = None,
    dataset: str | os.PathLike[str] | None = None,
    dataset_split: str = "train",
    text_column: str | None = None,
    label_column: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    space: str | os.PathLike[str] = "default",
    fix: Mapping[str, Any] | Iterable[str] | None = None,
    only: Mapping[str, Any] | Iterable[str] | None = None,
    device: str = "auto",
    devices: int | str = 1,
    cores_per_device: int | None = None,
    executor: str = "local",
    allow_unauthenticated: bool = False,
    memory_limit: str | int | None = None,
    headroom: str | float = 0.05,
    n_trials: int = 20,
    timeout: str | float | None = None,
    probe_timeout: str | float | None = None,
    confirmation_rounds: int = CONFIRMATION_ROUNDS,
    sampler: str = "physics",
    margin: str | float = 0.01,
    training_steps: int | None = None,
    no_history: bool = False,
    no_risk: bool = False,
    keep_numerics: bool = False,
    objective: str = "samples_per_second",
    seed: int = 0,
    args: UserArguments = None,
    require_parity: bool = False,
    allow_loss_difference: bool = False,
    trust_remote_code: bool = False,
    output_dir: str | os.PathLike[str] = "reports",
    report_to: str | Iterable[str] | None = None,
    study_name: str | None = None,
    fresh: bool = False,
    watch: Watch | bool | None = None,
    train_dataset: Any = None,
    data_collator: Any = None,
    processing_class: Any = None,
    trainer_class: type | None = None,
    probes: Callable[[bytes], ProbeHost] | None = None,
    started: float | None = None,
    base_arguments: UserArguments = None,
    training_args: UserArguments = None,
) -> "TuningResult":
    """Find the fastest configuration that fits; every option of `autotune search` is an argument here.

    - `model`: a built-in name, folder, config JSON or hub id; or what makes a model (a function, a class or a partial of
      them, called without arguments), with `train_dataset`; or what `tune` sends.
    - `global_batch_size`: samples in one optimizer step, over all ranks: exact in every trial.
    - `task`: `causal-lm`, `masked-lm`, ...; by default from the model's config.
    - `sequence_length`: tokens in the longest sample.
    - `dataset`: a local file or folder, or a hub id; by default random tokens. `dataset_split`, `text_column`,
      `label_column`: of it. `tokenizer`: name or folder; by default the model's own, else one trained on the data.
    - `space`: a shipped search space or a YAML file. `fix`: setting -> the value that it keeps; `only`: setting -> the values
      that are searched; both also as `["precision=bf16"]`.
    - `device`: `auto`, `cpu`, `cuda` or `cuda:1`. `devices`: how many devices of this machine measure side by side, or `all`:
      cards, or on a CPU shares of its cores. `cores_per_device`: of each; by default an equal share.
      `executor`: `local`, or `ray` for devices of the cluster at RAY_ADDRESS, which needs authentication unless
      `allow_unauthenticated`.
    - `memory_limit`: that the training may use, as `"24GiB"` or in bytes; by default what is free. `headroom`: share of it
      that must stay free, as 0.05 or `"5%"`.
    - `n_trials`: configurations to try in all, the baseline among them. `timeout`: of the whole call, in
      seconds or as `"10m"`; what it is too short for is left out and named. `probe_timeout`: of one probe; by default 10
      times the baseline's, at least 60 s. `confirmation_rounds`: measurements of the fastest and of the
      baseline, side by side in time, that a speed-up needs at the least.
    - `sampler`: `physics`, `tpe`, `gp`, `random`, `qmc` or `brute-force`; `seed`: of it. `margin`: share by which something
      untried must be able to beat the best for `physics` to go on. `training_steps`: of the run this is for; a search
      that cannot save its own time over them ends.
    - `no_history`: leave aside what past searches on this device measured. `no_risk`: once something fits, probe nothing
      that may not, where two at the most are tried otherwise. `keep_numerics`: nothing is tried that learns
      differently. What does not train like fp32 cannot win, unless `allow_loss_difference`; `require_parity`: nor
      what the rounds do not show to.
    - `objective`: `samples_per_second` or `tokens_per_second`.
    - `args`: your own `TrainingArguments`, as the object, as fields, or a JSON or YAML file: base of every trial, and the
      baseline. `base_arguments` and `training_args` are its former names.
    - `trust_remote_code`: run code that comes with the model.
    - `output_dir`: where report folders go; `study_name`: of this one's. `fresh`: begin the study again. `report_to`:
      trackers that are told of the study (`tensorboard`, `wandb`, `mlflow`, `trackio`).
    - `watch`: called with a Progress for everything that happens; by default, or by True, it is shown: in place in a
      notebook or a terminal, else as a line an event on standard error; False: nothing is.
    - `train_dataset`, `data_collator`, `processing_class`, `trainer_class`: as the Trainer takes them, with a `model` that is
      made by you.
    - `probes`: makes what starts probes from the caller's pickled objects; by default a `ProbeHost`, with processes on this
      machine. `started`: reading of the monotonic clock from which the timeout counts, by default this call's.

    Raises InvalidRequest for what cannot be done as asked, NothingFits, TimeIsOver, StudyInUse, StorageFailed, SearchFailed;
    KeyboardInterrupt passes: at the first Ctrl-C once the running probe is done, at the second at once; from the first
    probe on the report of what is known was written before.
    """
    given = locals()
    own = read_user_arguments(args=args, base_arguments=base_arguments, training_args=training_args)
    objects = {name: given[name] for name in ("train_dataset", "data_collator", "processing_class", "trainer_class")}
    brought = packed(model, {name: value for name, value in objects.items() if value is not None})
    request = tuning_request(
        brought.name, global_batch_size, training_args=own.fields, **{option: given[option] for option in OPTIONS}
    )
    notes = (*([left_out(own.unsent)] if own.unsent else []), *brought.notes)
    limit = TimeLimit(request.timeout_s, time.monotonic() if started is None else started)
    card = check_request(request, own_data=bool(brought.pickled))
    fingerprint = "" if brought.pickled else request_fingerprint(request)
    result = finished_study(request, fingerprint) if fingerprint and not fresh else None
    if result is None:
        with ExitStack() as stack:
            executors = stack.enter_context(_on_ray(request, brought.pickled)) if request.executor == "ray" else []
            notes = (*notes, *lock_card(card, stack))
            start = probes or first_host(request, card) or ProbeHost
            host = executors[0].host if executors else stack.enter_context(start(brought.pickled))
            if executors and request.devices != "all" and (lost := int(request.devices) - len(executors)):
                notes = (*notes, f"{lost} of {request.devices} devices left out: lost while they read model and data")
            for each in (host, *(executor.host for executor in executors)):
                each.time_limit = limit
            # Optuna, pandas and SciPy are imported while the host imports torch and transformers.
            from autotune.commands.study import run

            warnings = brought.warnings
            result = run(request, host, card, own.source, notes, warnings, fresh, watch, fingerprint, executors)
    user = own.user if brought.user_arguments is None else brought.user_arguments
    return dataclasses.replace(result, user_arguments=user)


def _on_ray(request: TuningRequest, objects: bytes) -> AbstractContextManager[list[Executor]]:
    from autotune.executors.ray import on_cluster

    return on_cluster(request, objects)


__all__ = ["Progress", "search"]
