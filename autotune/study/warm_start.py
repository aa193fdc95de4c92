"""Warm start of the `physics` sampler: memory estimates, device throughput and results of past studies."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import cache, partial
from itertools import combinations, product
from typing import Any

from autotune.core import Configuration, Environment, Trial, Value, Workload
from autotune.core.errors import ProbeHostFailed, TracingFailed
from autotune.core.note import Note, NoteKind
from autotune.memory.estimate import MemoryModel, NotTraced
from autotune.memory.peak import MemoryPeak
from autotune.probe import Host
from autotune.probe.order import UNTOUCHED_BYTES
from autotune.probe.queries import known_rates, traced
from autotune.sampler.calibration import Calibration, informed
from autotune.sampler.physics import expected_work
from autotune.sampler.prior import CPU_MEMORY, CUDA_KERNEL_S, Prior, roofline
from autotune.sampler.warm_start import WarmStart
from autotune.space.search_space import SearchSpace
from autotune.space.settings import MICRO, SETTINGS, Context, CostChange
from autotune.space.settings.batching import GROUPED, strategy
from autotune.space.utilization import Arithmetic, SampleFlops, padded_share
from autotune.study.pacing import time_for_a_probe
from autotune.study.plan import Progress, ProgressKind, Watch
from autotune.study.store import keep_peaks, reporting_storage
from autotune.study.study import Study

ESTIMATED = 0.2
"""Share of the time left that measuring the device's rates may take, and tracing after it: probes tell more."""

AHEAD_CORES = 4
"""Cores from which a GPU's baseline is measured while one of them traces: a training's loop, its backward thread and what
feeds them have the others."""

TRACED = 500
"""Combinations of values that are traced at most, half a minute to minutes; the others have the estimate of one nearby."""


def trace_ahead(study: Study, host: Host, context: Context, stack: ExitStack) -> Callable[[], MemoryModel] | None:
    """Begin the traces of a search on a GPU, in the background of the baseline's measurement.

    What is returned waits for them. None if they are to be made by `warm_up`: on a CPU they would disturb what is measured.
    """
    plan, environment, workload = study.plan, context.environment, context.workload
    is_begun = bool(study.trials) or plan.n_trials == 1
    if environment.is_cpu or environment.cpu_count < AHEAD_CORES or workload.user_objects or is_begun:
        return None
    if (other := host.background_host()) is None:
        return None
    thread = stack.enter_context(ThreadPoolExecutor(1))
    stack.callback(other.abandon)
    seconds = ESTIMATED * host.time_limit.seconds_left()
    needs = _needs(study.space) if plan.sampler == "physics" else _adapters(study.space)

    def traced_there() -> MemoryModel:
        with closing(other):
            try:
                return traced(other, workload, environment, needs, context.arguments, seconds)
            except ProbeHostFailed as error:
                raise TracingFailed(error.message, error.advice) from error

    return thread.submit(traced_there).result


def warm_up(
    study: Study,
    host: Host,
    context: Context,
    past: Sequence[Calibration] = (),
    traces: Callable[[], MemoryModel] | None = None,
) -> list[Note]:
    """Estimate memory and speed of what is untried, for the sampler and the report; returns notes for people.

    Not if no time is left to try anything. past: results of other studies on this device. traces: of `trace_ahead`.
    """
    space, plan, environment, base = study.space, study.plan, context.environment, context.arguments
    if not time_for_a_probe(plan, study.trials):
        return []
    if plan.sampler == "physics":
        made = build_warm_start(host, environment, context.workload, space, base, plan.allowed_bytes, traces)
        study.start_from(replace(made, prior=informed(made.prior, space, past)))
    elif not environment.is_cpu:  # of a CPU no peak is known, and a count takes as long as some probes
        arithmetic = count_operations(host, context, space, traces)
        study.start_from(replace(study.warm_start, arithmetic=arithmetic))
    _keep_peaks(study)
    unknown = study.warm_start.unknown
    return [Note(NoteKind.NO_ESTIMATE, detail=unknown)] if unknown else []


def build_warm_start(
    host: Host,
    environment: Environment,
    workload: Workload,
    space: SearchSpace,
    base: Mapping[str, Any],
    allowed_bytes: int,
    traces: Callable[[], MemoryModel] | None = None,
) -> WarmStart:
    """Start of the sampler `physics`, without results of other studies. traces: begun before.

    Of the host's time limit only a share is spent on this.
    """
    time_limit = host.time_limit
    rates = known_rates(host, environment, ESTIMATED * time_limit.seconds_left())
    effects = expected_effects(space, environment, workload)
    prior = replace(Prior(), work=expected_work(space.values, rates), effects=effects)
    if environment.is_cpu:
        prior = replace(prior, memory=CPU_MEMORY)
    estimate: Callable[[Configuration], float] | None = None
    unknown, model = "", None
    try:
        left_s = ESTIMATED * time_limit.seconds_left()
        model = traces() if traces else traced(host, workload, environment, _needs(space), base, left_s)
        estimate = estimates(model, space, workload)
        if model.arithmetic and "fp32" in rates:
            kernel_s = prior.kernel_s if environment.is_cpu else CUDA_KERNEL_S
            half_speed = roofline(**model.arithmetic, rate=rates["fp32"], kernel_s=kernel_s)
            prior = replace(prior, half_speed=half_speed)
    except TracingFailed as failed:
        unknown = failed.message
    untouched = UNTOUCHED_BYTES if environment.is_cpu else 0
    arithmetic = arithmetic_of(model, rates)
    return WarmStart(
        max(1, allowed_bytes - untouched),
        estimate,
        prior,
        unknown=unknown,
        untouched_bytes=untouched,
        peak=partial(_peak, model),
        arithmetic=arithmetic,
        padded=padding(workload, base, arithmetic),
    )


def padding(workload: Workload, base: Mapping[str, Any], arithmetic: Arithmetic) -> Callable[[Configuration], float]:
    """Arithmetic of a sample in a batch that is padded to its longest, of that of the longest sample of the data.

    Grouped by length or packed, batches are padded little: a sample counts as one of average length. base: the user's arguments.
    """
    own_order = strategy(base)
    flops = arithmetic.samples.get("") or next(iter(arithmetic.samples.values()), SampleFlops(1.0, 0.5))

    @cache
    def share(count: int) -> float:
        return flops.of(padded_share(workload.lengths, count)) / flops.whole

    def padded(configuration: Configuration) -> float:
        values = configuration.values
        if not workload.lengths:
            return 1.0
        is_full = values.get("batching", own_order) == GROUPED or values.get("packing", "none") != "none"
        return share(1 if is_full else configuration.micro_batch_size)

    return padded


def arithmetic_of(model: MemoryModel | None, rates: Mapping[str, float]) -> Arithmetic:
    """Known operations of the model, and rates of the device."""
    samples = model.sample_flops if model is not None else {}
    products = {name: rates[name] for name in map(str, SETTINGS["precision"].values) if name in rates}
    return Arithmetic({key: SampleFlops(**sample) for key, sample in samples.items()}, products)


def count_operations(
    host: Host, context: Context, space: SearchSpace, traces: Callable[[], MemoryModel] | None = None
) -> Arithmetic:
    """The same for a search that needs no estimates: of all weights, and of each adapter that can be proposed."""
    environment, base = context.environment, context.arguments
    left_s = ESTIMATED * host.time_limit.seconds_left()
    try:
        model = traces() if traces else traced(host, context.workload, environment, _adapters(space), base, left_s)
    except TracingFailed:
        return Arithmetic()
    left_s = ESTIMATED * host.time_limit.seconds_left()
    return arithmetic_of(model, known_rates(host, environment, left_s))


def estimated_peaks(knowledge: WarmStart, trials: Iterable[Trial]) -> dict[int, MemoryPeak]:
    """Trial number -> its estimated peak; without those that were not traced."""
    peaks = {trial.number: knowledge.peak(trial.configuration) for trial in trials}
    return {number: peak for number, peak in peaks.items() if peak is not None}


def keeping_peaks(watch: Watch, study: Study) -> Watch:
    """The same watch, before which every trial's estimated peak is written into the study's folder. Raises StorageFailed."""

    def both(progress: Progress) -> None:
        if progress.kind is ProgressKind.TRIAL:
            _keep_peaks(study)
        watch(progress)

    return both


def _keep_peaks(study: Study) -> None:
    with reporting_storage(study.folder):
        keep_peaks(study.folder, estimated_peaks(study.warm_start, study.trials))


def _peak(model: MemoryModel | None, configuration: Configuration) -> MemoryPeak | None:
    try:
        return model.peak(configuration) if model is not None else None
    except (NotTraced, KeyError):
        return None


def expected_effects(
    space: SearchSpace, environment: Environment, workload: Workload
) -> dict[str, dict[Value, CostChange]]:
    """Prior.effects: what the settings say of their values on this device (Costs.change)."""
    effects = {
        name: {value: SETTINGS[name].costs.change(value, Context(environment, workload)) for value in values}
        for name, values in space.values.items()
        if name != MICRO
    }
    return {name: by_value for name, by_value in effects.items() if any(map(any, by_value.values()))}


def _needs(space: SearchSpace) -> list[Configuration]:
    """A configuration for each combination of the values that change memory, those near the baseline first."""
    traced_settings = [name for name, setting in SETTINGS.items() if setting.costs.memory and setting.costs.traced]
    names = [name for name in traced_settings if name in space.values and name != MICRO]
    distinct: dict[Configuration, None] = {}
    for configuration in _combined(space, names):  # of all settings they are far more
        distinct.setdefault(_traceable(space, configuration))
        if len(distinct) == TRACED:
            break
    return [space.baseline, *distinct]


def _adapters(space: SearchSpace) -> list[Configuration]:
    """The baseline, and a configuration of each adapter."""
    adapted = [name for name in ("lora", "lora_targets") if name in space.values]
    return [space.baseline, *_combined(space, adapted)]


def _combined(space: SearchSpace, named: Sequence[str]) -> Iterator[Configuration]:
    """Ever more of these settings at another value than the baseline's; the last micro-batch size, all else as the baseline."""
    own = {
        name: value if value in space.values[name] else space.values[name][0]
        for name, value in space.baseline.values.items()
    }
    own[MICRO] = space.values[MICRO][-1]
    others = {name: [value for value in space.values[name] if value != own[name]] for name in named}
    for count in range(len(named) + 1):
        for changed in combinations(named, count):
            for values in product(*(others[name] for name in changed)):
                yield space.configuration({**own, **dict(zip(changed, values, strict=True))})


def _traceable(space: SearchSpace, configuration: Configuration) -> Configuration:
    """The same but for settings whose value cannot be traced, which are at `none`; what that changes `Costs.change` says."""
    values = configuration.values
    traceable = {name: value if SETTINGS[name].costs.traceable(value) else "none" for name, value in values.items()}
    return configuration if traceable == values else space.configuration(traceable)


def estimates(model: MemoryModel, space: SearchSpace, workload: Workload) -> Callable[[Configuration], float]:
    """A configuration's peak bytes: traced.

    If it was not, as without what cannot be traced, then as with the baseline's other settings beside the space's core
    settings, or at its micro-batch size; and at least weights and gradients.
    """

    @cache
    def estimate(configuration: Configuration) -> float:
        own, values = space.baseline.values, configuration.values
        core = {name: values[name] for name in space.core}
        for candidate in (
            configuration,
            _traceable(space, configuration),
            space.configuration({**own, MICRO: values[MICRO], **core}),
            space.configuration({**own, MICRO: values[MICRO]}),
        ):
            try:
                return float(model.peak(candidate).device_bytes)
            except (NotTraced, KeyError):
                continue
        return float(workload.parameter_bytes + workload.gradient_bytes)

    return estimate
