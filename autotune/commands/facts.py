"""A result -> the facts that reports tell."""

from pathlib import Path

from autotune.commands.doctor import device_parts
from autotune.commands.search_result import Found
from autotune.core.environment import Environment
from autotune.core.paths import named, scrubbed
from autotune.core.request import TuningRequest
from autotune.core.units import format_parameters
from autotune.core.workload import Workload
from autotune.report.facts import Facts
from autotune.report.logs import log_tails
from autotune.space.utilization import Utilization
from autotune.study.certainty import speedup_reason
from autotune.study.objective import best_trial, speed_up


def facts_of(result: Found) -> Facts:
    """What reports tell of this result, as plain values, without places of the machine and tokens.

    Raises InvalidRequest where the answer holds a setting or value that this version does not know.
    """
    best = best_trial(result.trials, result.request.objective)
    first = result.trials[0] if result.trials and result.trials[0].number == 0 else None
    speedup = speed_up(best, first, result.request.objective)[0] if best and first else None
    reason = speedup_reason(result.trials, result.request.objective, result.request.timeout_s)
    environment, workload = result.environment, result.workload
    return Facts(
        name=result.request.name_of_study(workload.task, environment.device),
        trials=result.trials,
        best=best,
        baseline=first,
        speedup=speedup,
        speedup_reason=scrubbed(reason),
        stop_reason=scrubbed(result.stop_reason),
        answer=result.training_argument_fields() if best else {},
        model_answer=result.model_arguments() if best else {},
        variables=result.environment_variables() if best else {},
        processes=result.processes() if best else 1,
        data_answer=result.data_arguments() if best else {},
        adapter=result.adapter_arguments() if best else {},
        switches=result.torch_switches() if best else {},
        model=f"{named(workload.name)} ({workload.architecture}, {format_parameters(workload.parameters)} parameters)",
        task=workload.task,
        device=f"{environment.device} ({environment.device_name}, {environment.threads} threads)",
        versions=environment.versions,
        data=scrubbed(_data_text(result.request, workload)),
        objective=result.request.objective,
        limit_bytes=result.memory_limit_bytes,
        allowed_bytes=result.allowed_bytes,
        ruled_out=[scrubbed(str(one)) for one in result.ruled_out],
        notes=[scrubbed(one) for one in (*result.notes, *workload.notes)],
        warnings=[scrubbed(one) for one in result.study_warnings],
        disqualified=[(trial, scrubbed(reason)) for trial, reason in result.disqualified],
        duplicate_proposals=result.duplicate_proposals,
        left_out=result.left_out,
        device_note=_device_note(environment, result.processes() if best else 1),
        numerics=result.numerics,
        rehearsal=result.rehearsal,
        verification=result.verification,
        prospects=result.prospects,
        estimated_peaks=result.estimated_peaks,
        utilization=utilizations(result),
        elsewhere=result.for_other_tools() if best else None,
        logs=log_tails(result.trials, result.folder),
        surroundings=[(label, scrubbed(text)) for label, text in device_parts(environment)],
    )


def utilizations(result: Found) -> dict[int, Utilization]:
    """Trial number -> how much of the device's arithmetic it uses, where that is known."""
    every = {trial.number: result.utilization(trial) for trial in result.trials}
    return {number: one for number, one in every.items() if one is not None}


def _data_text(request: TuningRequest, workload: Workload) -> str:
    length = f", up to {workload.sequence_length} tokens" if workload.sequence_length else ""
    if request.dataset:
        return f"{Path(request.dataset).name}, {workload.samples} samples{length}; {workload.text_source}"
    return f"{workload.text_source or 'synthetic random samples'}{length}"


def _device_note(environment: Environment, ranks: int) -> str:
    """How to start the real run where more GPUs are visible than it has ranks: alone the Trainer would wrap it in
    nn.DataParallel."""
    if environment.is_cpu or environment.device_count < 2:
        return ""
    if ranks > 1:
        if ranks == environment.device_count:
            return ""
        cards = ",".join(environment.device_uuids[:ranks])
        return f"{ranks} of {environment.device_count} GPUs were measured: CUDA_VISIBLE_DEVICES={cards}"
    return (
        f"one of {environment.device_count} GPUs was measured; start the real run with "
        f"CUDA_VISIBLE_DEVICES={environment.device_uuid}, or the batch is multiplied by the number of GPUs"
    )
