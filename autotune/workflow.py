"""What people call: each function a few lines over the rooms."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from autotune.calibration import calibrated
from autotune.configuration import RANKS
from autotune.environment import Environment
from autotune.errors import InvalidRequest, NothingFits
from autotune.finishing import finish
from autotune.history import Remembered, recall, remember
from autotune.identity import study_identity
from autotune.interruption import patient, statement_of
from autotune.knowledge import gather, keeping_peaks
from autotune.levers import LEVERS
from autotune.limits import check_model_fits, check_output, least_bytes, memory_limit
from autotune.live import following
from autotune.loggers import check_installed
from autotune.loggers.guarded import Guarded
from autotune.measurement import Outcome
from autotune.objective import best_trial
from autotune.own_arguments import fields_of, left_out, read_training_args
from autotune.physics import Knowledge
from autotune.plan import Plan, Progress, Watch
from autotune.probe import device
from autotune.probe.launcher import ProbeHost
from autotune.probe.live import LiveProbe
from autotune.random_state import kept_random_state
from autotune.rebuilding import ITSELF, MODEL_INIT, arguments_needed, called
from autotune.report import FILES
from autotune.request import TuningRequest, tuning_request
from autotune.result import TuningResult
from autotune.saved import begin
from autotune.search_space import SearchSpace
from autotune.sending import Sent, sent
from autotune.space_building import build_space, read_wishes
from autotune.study import adopt, open_study, progress
from autotune.study import search as run_study
from autotune.study_folder import check_identity, is_unmeasured, locked, read_peaks, read_prospects, remove_study
from autotune.survey import read_environment, read_workload
from autotune.tiles import advice
from autotune.training_arguments import baseline_sizes, check_fields, what_differs
from autotune.units import format_bytes
from autotune.workload import Workload


@kept_random_state()
def search(
    model: str | os.PathLike[str] | Callable[..., Any] | Sent,
    global_batch_size: int,
    *,
    train_dataset: Any = None,
    data_collator: Any = None,
    processing_class: Any = None,
    trainer_class: type | None = None,
    base_arguments: Any = None,
    training_args: str | Path | Mapping[str, Any] | None = None,
    fresh: bool = False,
    watch: Watch | bool | None = None,
    probes: Callable[[bytes], ProbeHost] | None = None,
    **options: Any,
) -> TuningResult:
    """Find the fastest configuration that fits; every option of `autotune search` is an argument here.

    model: a built-in name, folder, config JSON or hub id; or a `model_init` callable, with `train_dataset` (and, as the
    Trainer takes them, `data_collator`, `processing_class`, `trainer_class`); or what `tune` sends. base_arguments: the
    user's own `TrainingArguments`; training_args: the same from a JSON or YAML file or as fields. fresh: begin the study
    again. watch: called with a Progress for everything that happens; by default, or by True, it is shown: in place in a
    notebook or a terminal, else as a line an event on standard error; False: nothing is. probes: makes what starts probes
    from the caller's pickled objects; by default a `ProbeHost`, with processes on this machine.

    Raises InvalidRequest for what cannot be done as asked, NothingFits, StudyInUse, StorageFailed, SearchFailed;
    KeyboardInterrupt passes: at the first Ctrl-C once the running probe is done, at the second at once; from the first
    probe on the report of what is known was written before.
    """
    if base_arguments is not None and training_args is not None:
        raise InvalidRequest("Both base_arguments and training_args are given.", "Keep one of them.")
    if isinstance(base_arguments, (str, os.PathLike, Mapping)):
        base_arguments, training_args = None, base_arguments
    base, unsent = fields_of(base_arguments) if base_arguments is not None else (read_training_args(training_args), [])
    objects = {
        "train_dataset": train_dataset,
        "data_collator": data_collator,
        "processing_class": processing_class,
        "trainer_class": trainer_class,
    }
    name, pickled = _user_objects(model, {key: value for key, value in objects.items() if value is not None})
    request = tuning_request(name, global_batch_size, training_args=base, **options)
    # Wrong words are said before anything is started.
    check_installed(request.report_to)
    fixed = read_wishes(request)[1]
    baseline_sizes(request.global_batch_size, base, int(fixed.get(RANKS, 1)))
    card = device.choose_device(request.device)
    check_output(request)
    with (probes or ProbeHost)(pickled) as host, following(watch) as told:
        environment, card = read_environment(host, request, card)
        check_fields(base, environment, _source(training_args))
        base = what_differs(base, environment)
        request = dataclasses.replace(request, training_args=base)
        workload = read_workload(host, request)
        space = build_space(request, environment, workload, base)
        unmeasured = _unmeasured(request, environment, workload, space, fresh)
        if unsent:
            unmeasured = dataclasses.replace(unmeasured, notes=(*unmeasured.notes, left_out(unsent)))
        if isinstance(model, Sent):
            notes = (*unmeasured.notes, *model.notes)
            unmeasured = dataclasses.replace(unmeasured, notes=notes, doubts=model.doubts)
        assert unmeasured.folder is not None
        with locked(unmeasured.folder):
            if fresh or is_unmeasured(unmeasured.folder):
                remove_study(unmeasured.folder, FILES)
            return _search(unmeasured, space, host, card, told, fresh)


def _search(
    unmeasured: TuningResult,
    space: SearchSpace,
    host: ProbeHost,
    card: device.Card | None,
    watch: Watch,
    fresh: bool,
) -> TuningResult:
    """Run the study in its locked folder; the report is written however it ends."""
    request, folder = unmeasured.request, unmeasured.folder
    assert folder is not None
    check_identity(folder, unmeasured.identity)
    begin(unmeasured, folder)
    plan = Plan(
        n_trials=request.n_trials,
        objective=request.objective,
        memory_limit_bytes=unmeasured.memory_limit_bytes,
        allowed_bytes=unmeasured.allowed_bytes,
        timeout_s=request.timeout_s,
        probe_timeout_s=request.probe_timeout_s,
        sampler=request.sampler,
        seed=request.seed,
        margin=request.margin,
        training_steps=request.training_steps,
    )
    environment, workload, base = unmeasured.environment, unmeasured.workload, request.training_args
    past = Remembered() if request.no_history else recall(environment, unmeasured.identity)
    allowed = unmeasured.allowed_bytes
    knowledge = Knowledge(allowed)
    if request.sampler == "physics":
        watch(Progress("preparing", (), probes_left=request.n_trials, message="estimating memory before any probe"))
        knowledge = gather(host, environment, workload, space, base, allowed, past.others)
        if knowledge.unknown:
            unmeasured = dataclasses.replace(unmeasured, notes=(*unmeasured.notes, knowledge.unknown))
    study = open_study(folder, space, plan, knowledge)
    watch = keeping_peaks(watch, knowledge, folder)
    if adopted := 0 if fresh or workload.user_objects else adopt(study, past.trials):
        note = f"{adopted} trial(s) come from an earlier search of the same request (--no-history measures anew)"
        unmeasured = dataclasses.replace(unmeasured, notes=(*unmeasured.notes, note))
    probe = LiveProbe(
        host,
        environment,
        workload,
        base,
        allowed,
        study.probe_folder,
        request.objective,
        device_used=device.usage_of(card),
    )
    loggers = Guarded(request.report_to, request.objective, folder)
    known: dict[str, Any] = {}
    with patient(study.wish, lambda said: watch(progress(study, "stopping", message=said))):
        try:
            loggers.start(request, unmeasured.facts())
            watch = loggers.watching(watch)
            known["statement"] = run_study(study, probe, watch)
            remember(environment, unmeasured.identity, study.trials, calibrated(space, knowledge, study.trials))
            weights = _weights_text(workload)
            known["numerics"], known["rehearsal"] = finish(
                study, probe, probe.train, weights, watch, request.require_parity
            )
            known["complete"] = True
        except BaseException as error:
            known["statement"] = statement_of(error)
            raise
        finally:
            with study.wish.held_back():
                known |= {"notes": (*unmeasured.notes, *loggers.problems)}
                known |= {"trials": tuple(study.trials), "answered_at_once": study.answered_at_once}
                known |= {"prospects": read_prospects(folder), "estimated_peaks": read_peaks(folder)}
                result = dataclasses.replace(unmeasured, **known)
                result.save(folder)
            loggers.finish(result.facts(), result.complete)
    if best_trial(result.trials, request.objective) is None:
        raise NothingFits(
            _why_nothing_fits(result), "Raise --memory-limit, lower --headroom, or shorten --sequence-length."
        )
    return result


OWN_WEIGHTS = {MODEL_INIT: "weights as model_init makes them", ITSELF: "the weights of the model as it was sent"}
"""What a caller's own model was made by -> its weights; of a model rebuilt from its config they are random."""


def _weights_text(workload: Workload) -> str:
    """Where the weights of the losses that are compared come from."""
    if workload.user_objects and workload.source in OWN_WEIGHTS:
        return OWN_WEIGHTS[workload.source]
    return "the model's own weights" if workload.weights else "random weights"


def _unmeasured(
    request: TuningRequest, environment: Environment, workload: Workload, space: SearchSpace, fresh: bool
) -> TuningResult:
    """Everything that is known of the answer before the first probe.

    Raises InvalidRequest for a limit above the device, NothingFits for one below what the model alone needs.
    """
    folder = request.study_folder(workload.task, environment.device)
    limit = memory_limit(request, environment, None if fresh or is_unmeasured(folder) else folder)
    allowed = int(limit * (1 - request.headroom))
    if not any(LEVERS[name].spares_gradients(value) for name, values in space.values.items() for value in values):
        check_model_fits(workload, allowed, limit, least_bytes(space, environment))
    return TuningResult(
        request=request,
        workload=workload,
        environment=environment,
        trials=(),
        statement="the search was interrupted",
        complete=False,
        memory_limit_bytes=limit,
        allowed_bytes=allowed,
        space_size=space.size,
        ruled_out=space.ruled_out,
        notes=(
            *space.notes,
            *_learning(space),
            *advice(workload.model_config, environment, space.beside("precision")),
        ),
        identity=study_identity(request, environment, workload, space),
        folder=folder,
    )


def _learning(space: SearchSpace) -> tuple[str, ...]:
    names = ", ".join(space.learns_differently)
    return (f"changes what is learned: {names} (--keep-numerics leaves that as it is)",) if names else ()


def examine(asked: str = "auto") -> Environment:
    """What the device, its driver and the libraries can really do; raises InvalidRequest for an absent device."""
    request = tuning_request("bert-mini", 1, device=asked)
    card = device.choose_device(request.device)
    with ProbeHost() as host:
        return read_environment(host, request, card, every_optimizer=True)[0]


# What the request says, read --------------------------------------------------------------------------------------


def _source(training_args: Any) -> str:
    return str(training_args) if isinstance(training_args, (str, Path)) else "Your training arguments"


def _user_objects(model: Any, objects: dict[str, Any]) -> tuple[str, bytes]:
    """(name, pickled objects): no bytes where the model is a name and nothing else was brought."""
    if isinstance(model, Sent):
        return model.name, model.pickled
    if isinstance(model, (str, os.PathLike)):
        if objects:
            raise InvalidRequest(
                f"{', '.join(objects)} need a `model_init` callable as the model.",
                "Pass a function that makes the model, or name the data with dataset=.",
            )
        return os.fspath(model), b""
    if not callable(model) or (hasattr(model, "parameters") and not isinstance(model, type)):
        raise InvalidRequest(
            f"The model is a {type(model).__name__}.", "Pass a name, or a function or class that makes the model."
        )
    if needed := arguments_needed(model):
        raise InvalidRequest(
            f"{called(model)} cannot be made without {', '.join(needed)}.",
            f"Pass functools.partial({called(model)}, ...) or a function that makes the model.",
        )
    if "train_dataset" not in objects:
        raise InvalidRequest("A `model_init` needs a train_dataset.", "Pass the dataset that the Trainer would get.")
    pickled = sent({"model_init": model, **objects})
    return called(model), pickled


def _why_nothing_fits(result: TuningResult) -> str:
    tried = [trial for trial in result.trials if trial.measurement.outcome is Outcome.OUT_OF_MEMORY]
    if not tried:
        ends = ", ".join(sorted({trial.final.outcome.value for trial in result.trials}))
        return f"None of {len(result.trials)} trial(s) completed ({ends}): see {result.folder}/summary.md."
    least = min(tried, key=lambda trial: (trial.measurement.held_bytes or 0) + (trial.measurement.refused_bytes or 0))
    wanted = (least.measurement.held_bytes or 0) + (least.measurement.refused_bytes or 0)
    return (
        f"Nothing fits into {format_bytes(result.allowed_bytes)}: the leanest of {len(result.trials)} trial(s) "
        f"({least.configuration}) wanted at least {format_bytes(wanted)}."
    )


__all__ = ["Progress", "examine", "search"]
