"""Result of a search, and what follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.core import Environment, InvalidRequest, Trial, TuningRequest, Workload
from autotune.core.device import Device
from autotune.core.interval import Ratio
from autotune.core.loss_curves import Numerics
from autotune.core.no_answer import no_answer_words, why_no_answer
from autotune.core.note import Note
from autotune.core.paths import named, scrubbed
from autotune.core.prospect import Forecast, OptimalityGap
from autotune.core.real_run import RealRun
from autotune.core.sanity import SanityCheck
from autotune.core.stop_reason import StopReason
from autotune.core.units import format_parameters
from autotune.core.warning import ResultWarning, WarningKind
from autotune.judge.certainty import SpeedupGap, speedup_gap
from autotune.judge.objective import pareto_front
from autotune.judge.standing import Standing
from autotune.memory.peak import MemoryPeak
from autotune.space.search_space import RuledOut
from autotune.space.setup import TrainingSetup, training_setup
from autotune.space.utilization import Arithmetic, Utilization, utilization


@dataclass(frozen=True)
class SearchResult:
    """The answer of a search and everything it is based on; plain data, loaded without unpickling.

    Its texts name no folders of the machine and hold no tokens: reports are handed on.
    """

    request: TuningRequest  # the options of the search
    workload: Workload  # the model and data that the request turned out to be
    environment: Environment  # device and software
    trials: Sequence[Trial]  # in the order of their numbers, 0 the baseline
    stop: StopReason  # why the search ended
    memory_limit_bytes: int  # that the training may use
    allowed_bytes: int  # limit x (1 - headroom)
    space_size: int = 0  # configurations that could be proposed
    ruled_out: Sequence[RuledOut] = ()  # values that were never probed, with the reason
    notes: Sequence[Note] = ()  # what else a reader should know
    study_warnings: Sequence[ResultWarning] = ()  # about every number of the study
    duplicate_proposals: int = 0  # that earlier trials already answered
    left_out: Sequence[str] = ()  # what there was no time for
    finished: str = ""  # fingerprint of the request that this answers completely
    identity: Mapping[str, Any] = field(default_factory=dict)  # what tells this study from others
    numerics: Numerics | None = None  # loss curves of what was measured again and of fp32; None if not compared
    sanity_check: SanityCheck | None = None  # the winner's evaluation batch and checkpoint; None if not made
    verification: Mapping[str, Any] | None = None  # what `autotune verify` measured
    explanation: Mapping[str, Any] | None = None  # what `autotune explain` measured
    last_real_run: RealRun | None = None  # a whole training with an answer, seen by `PromiseCallback`
    prospects: Mapping[int, OptimalityGap] = field(default_factory=dict)  # by the trial after which it held
    estimated_peaks: Mapping[int, MemoryPeak] = field(default_factory=dict)  # by trial, if it could be traced
    arithmetic: Arithmetic = field(default_factory=Arithmetic)  # operations of a sample, and of the fastest products
    devices: Sequence[Device] = ()  # if the search had several
    forecast: Forecast | None = None  # None if it ended before there was one, and if it was resumed
    folder: Path | None = None  # of the report, if saved
    complete: bool = True  # whether the search came to its end
    date: str = ""  # of its last run, as 2026-11-22; empty if unknown
    command: Sequence[str] = field(default=(), repr=False, compare=False)
    """Words of the command line that began the search, without `autotune`; in memory only, empty for a search from Python."""
    user_arguments: Any = field(default=None, repr=False, compare=False)
    """The user's own `TrainingArguments`, or fields that belong to their run alone (folders, names, hub); in memory only."""

    def __post_init__(self) -> None:
        texts = {
            "stop": replace(self.stop.public(), advice=scrubbed(self.stop.advice)),
            "notes": tuple(note.public() for note in self.notes),
            "study_warnings": tuple(warning.public() for warning in self.study_warnings),
            "ruled_out": tuple(replace(value, reason=value.reason.public()) for value in self.ruled_out),
        }
        for name, text in texts.items():
            object.__setattr__(self, name, text)

    @property
    def stop_reason(self) -> str:
        """The reason why the search ended, in words."""
        return self.stop.text

    @property
    def unreadable(self) -> list[ResultWarning]:
        """Warnings of files of the study that cannot be read."""
        return [warning for warning in self.study_warnings if warning.kind is WarningKind.UNREADABLE_FILE]

    # What was found ---------------------------------------------------------------------------------------------

    @cached_property
    def standing(self) -> Standing:
        """Standing of the trials."""
        request = self.request
        is_cut = not self.complete or request.timeout_s is not None or not request.confirmation_rounds
        return Standing(tuple(self.trials), request.objective, may_be_unproven=is_cut)

    @cached_property
    def best_trial(self) -> Trial | None:
        """The answer: the baseline unless another trial is shown to be better; None if there is no answer.

        Of what was refuted, the trial that it was compared with takes the place.
        """
        return self.compared_trial if self.refuted else self.standing.answer

    @cached_property
    def refuted(self) -> Trial | None:
        """The trial that the search found to be faster and `autotune verify` did not, in plain trainings; None without one."""
        found, verification = self.standing.answer, self.verification or {}
        low = verification.get("measured", {}).get("speedup_low")
        if found is None or verification.get("configuration") != found.configuration.to_dict():
            return None
        is_refuted = verification.get("held") is False and low is not None and low <= 1
        return found if is_refuted else None

    @property
    def real_run(self) -> RealRun | None:
        """The last whole training with this answer; None without one, and if it was of another answer."""
        run, best = self.last_real_run, self.best_trial
        return run if run and best and run.configuration == best.configuration.to_dict() else None

    @property
    def states_settings(self) -> bool:
        """True if the user has stated the baseline, by arguments or a Trainer; else it is the defaults of `TrainingArguments`."""
        return bool(self.request.training_args) or self.workload.user_objects

    @property
    def baseline_name(self) -> str:
        """Name of the configuration that the answer is compared with."""
        return "your settings" if self.states_settings else "the Trainer's defaults"

    @property
    def baseline_word(self) -> str:
        """Heading of the baseline's column."""
        return "yours" if self.states_settings else "defaults"

    @property
    def changes_settings(self) -> bool:
        """True if the answer is another configuration than the user's, which only something shown to be better is."""
        return self.best_trial is not None and self.best_trial.number != 0

    @property
    def best(self) -> Trial:
        """The answer: the baseline, unless another trial is shown to be better.

        Raises NothingFits if no configuration is feasible, SearchFailed if none completed.
        """
        if (best := self.best_trial) is None:
            raise why_no_answer(self.trials, self.allowed_bytes)
        return best

    @property
    def why_no_best(self) -> str:
        """Reason why there is no answer, in two words; empty if there is one."""
        return "" if self.best_trial else no_answer_words(self.trials, self.allowed_bytes)

    @property
    def baseline_trial(self) -> Trial | None:
        """Trial 0; None if it was never probed."""
        return self.trials[0] if self.trials and self.trials[0].number == 0 else None

    @property
    def baseline(self) -> Trial:
        """The user's own configuration, made exact: trial 0. Raises InvalidRequest if it was never probed."""
        if (baseline := self.baseline_trial) is None:
            raise InvalidRequest("The search ended before its baseline was measured.", "Run the same command again.")
        return baseline

    @property
    def compared_trial(self) -> Trial | None:
        """The trial with which the answer is compared: the baseline or, if that does not fit, the least change that does."""
        return self.standing.compared

    @property
    def substitute(self) -> Trial | None:
        """The trial with which the answer is compared in place of a baseline that does not fit; None if that runs."""
        return self.standing.substitute

    @cached_property
    def best_setup(self) -> TrainingSetup:
        """Training setup of the recommended trial; empty if there is no answer.

        Raises InvalidRequest for a study of another version, of whose answer a setting or value is unknown here.
        """
        best = self.best_trial
        return training_setup_of(self, best) if best else TrainingSetup()

    @property
    def setup(self) -> TrainingSetup:
        """The answer in every part: training arguments, model and data arguments, adapter, variables, processes.

        Raises NothingFits and SearchFailed as `best` does, InvalidRequest for a study of another version.
        """
        self.best  # noqa: B018  (raises if there is none)
        return self.best_setup

    @property
    def is_verifiable(self) -> bool:
        """True if `autotune verify` can train the answer: on one rank, with a model that is not the caller's own.

        Raises InvalidRequest as `best_setup` does.
        """
        return self.best_setup.processes == 1 and not self.workload.user_objects

    @property
    def measured_speedup(self) -> Ratio | None:
        """Speed of the best trial divided by the baseline's or its substitute's; None if there is nothing to compare."""
        best = self.best_trial
        return None if best is None or best is self.substitute else self.standing.gain(best)

    @property
    def speedup(self) -> Ratio | None:
        """Speed divided by the baseline's (or `substitute`'s); a float with `.low` and `.high`, as text `1.46x (1.26 to 1.70)`.

        Exactly 1 if the answer is the baseline. None: see `speedup_reason`.

        Raises NothingFits and SearchFailed as `best` does, InvalidRequest as `baseline` does.
        """
        self.best, self.baseline  # noqa: B018  (raise if there are none)
        return self.measured_speedup

    @cached_property
    def speedup_gap(self) -> SpeedupGap | None:
        """Reason why there is no speed-up, or why it is unknown if there is and how to find out; None if it is neither."""
        gap = speedup_gap(self.standing, self.request.timeout_s)
        return gap and gap.public()

    @property
    def speedup_reason(self) -> str:
        """The same in words, else empty."""
        return str(self.speedup_gap or "")

    @property
    def disqualified(self) -> list[tuple[Trial, str]]:
        """Trials that were faster than the best one and could not win, with the reason, the fastest first.

        They do not train like fp32, or are not certainly faster than the baseline.
        """
        return [(trial, scrubbed(reason)) for trial, reason in self.standing.disqualified]

    @property
    def pareto_front(self) -> list[Trial]:
        """Trials that no other beats in both speed and memory, fastest first."""
        return pareto_front(self.trials)

    def utilization(self, trial: Trial) -> Utilization | None:
        """Share of the device's arithmetic that the trial uses; None if its speed or its operations are not known."""
        return utilization(trial, self.arithmetic, self.environment, self.workload, self.request.training_args)

    @cached_property
    def utilizations(self) -> dict[int, Utilization]:
        """Trial number -> how much of the device's arithmetic it uses, if that is known."""
        uses = {trial.number: self.utilization(trial) for trial in self.trials}
        return {number: use for number, use in uses.items() if use is not None}

    # In words ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The study's name."""
        return self.request.name_of_study(self.workload.task, self.environment.device)

    @property
    def title(self) -> str:
        """`gpt2-mini, causal-lm, global batch 48`: what was searched for, whatever the study is called.

        The global batch is that of the user's loader if it decides it.
        """
        decided = (each.numbers.get("step_rows") for trial in self.trials for each in trial.measurement.kept)
        size = next(filter(None, decided), self.request.global_batch_size)
        model = self.request.model_name if self.workload.user_objects else named(self.workload.name)
        return f"{model}, {self.workload.task}, global batch {size:.10g}"

    @property
    def model_text(self) -> str:
        """`gpt2-mini (GPT2LMHeadModel, 4.0M parameters)`."""
        workload = self.workload
        return f"{named(workload.name)} ({workload.architecture}, {format_parameters(workload.parameters)} parameters)"

    @property
    def data_text(self) -> str:
        """Text on the data of the training."""
        workload, dataset = self.workload, self.request.dataset
        length = f", up to {workload.sequence_length} tokens" if workload.sequence_length else ""
        if dataset:
            return scrubbed(f"{Path(dataset).name}, {workload.samples} samples{length}; {workload.text_source}")
        return scrubbed(f"{workload.text_source or 'synthetic random samples'}{length}")

    @property
    def device_text(self) -> str:
        """`cpu (its name, 2 threads)`."""
        return f"{self.environment.device} ({self.environment.device_name}, {self.environment.threads} threads)"

    @property
    def all_notes(self) -> list[Note]:
        """The study's notes and the workload's."""
        return [*self.notes, *(note.public() for note in self.workload.notes)]

    @property
    def device_note(self) -> str:
        """Instructions to start the real run if more GPUs are visible than it has ranks.

        By default the Trainer would wrap it in nn.DataParallel. Raises InvalidRequest, InvalidSpace and StudyMismatch as
        `best_setup` does.
        """
        environment, ranks = self.environment, self.best_setup.processes
        if environment.is_cpu or environment.device_count < 2 or ranks == environment.device_count:
            return ""
        if ranks > 1:
            cards = ",".join(environment.device_uuids[:ranks])
            return f"{ranks} of {environment.device_count} GPUs were measured: CUDA_VISIBLE_DEVICES={cards}"
        return (
            f"one of {environment.device_count} GPUs was measured; start the real run with "
            f"CUDA_VISIBLE_DEVICES={environment.device_uuid}, or the batch is multiplied by the number of GPUs"
        )


def training_setup_of(result: SearchResult, trial: Trial) -> TrainingSetup:
    """Training setup of this trial. Raises InvalidRequest if it holds what this version does not know."""
    base, task = result.request.training_args, result.workload.task
    return training_setup(trial.configuration, result.environment, base, task)
