"""Found: everything that an answer stands on, and what follows from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.core.environment import Environment
from autotune.core.errors import InvalidRequest
from autotune.core.interval import Interval
from autotune.core.loss_curves import LOSSES, Numerics
from autotune.core.no_answer import why_no_answer
from autotune.core.paths import named
from autotune.core.prospect import OptimalityGap
from autotune.core.request import TuningRequest
from autotune.core.sanity import SanityCheck
from autotune.core.trial import Trial
from autotune.core.workload import Workload
from autotune.memory.peak import MemoryPeak
from autotune.report.evidence import loss_warning
from autotune.report.exports import Answer, auto_class
from autotune.space.search_space import RuledOut
from autotune.space.setup import (
    adapter_arguments,
    data_arguments,
    host_environment,
    model_arguments,
    process_environment,
    processes,
    torch_switches,
    training_arguments,
)
from autotune.space.utilization import Arithmetic, Utilization, utilization
from autotune.study.certainty import speedup_reason
from autotune.study.objective import best_trial, disqualified, pareto_front, speed_up
from autotune.workload.model.builtin import BUILT_IN


@dataclass(frozen=True)
class Found:
    """The answer of a search and everything it stands on; plain data, loaded without unpickling.

    request: what was asked for. workload: the model and data that it turned out to be. environment: facts of device and
    software. trials: in the order of their numbers, 0 the baseline. statement: why the search ended; complete: whether it
    came to its end. memory_limit_bytes: bytes that the training may use. allowed_bytes: limit x (1 - headroom), in bytes.
    space_size: configurations that could be proposed. ruled_out: values that were never probed, with the reason.
    notes: what else a reader should know, a sentence each. study_warnings: what speaks against every number of the study.
    answered_at_once: proposals that earlier trials already answered. left_out: what there was no time for. finished:
    fingerprint of the request that this answers with nothing left to do; empty where something is.
    identity: what makes this study itself,
    as plain data. numerics: loss curves of the finalists and of fp32; rehearsal: the winner's evaluation batch and
    checkpoint; verification: what `autotune verify` found; each None where it was not made. prospects: trial number -> what the
    untried could still win after it. estimated_peaks: trial number -> what its memory is for, by the estimate, where it
    could be traced. arithmetic: operations of a sample, and of the device's fastest products. folder: where the report is, if
    saved. user_arguments: the user's own `TrainingArguments`, or fields that belong to their run alone (folders, names, hub);
    in memory only: no file holds them, and a loaded result has none.
    """

    request: TuningRequest
    workload: Workload
    environment: Environment
    trials: Sequence[Trial]
    stop_reason: str
    memory_limit_bytes: int
    allowed_bytes: int
    space_size: int = 0
    ruled_out: Sequence[RuledOut] = ()
    notes: Sequence[str] = ()
    study_warnings: Sequence[str] = ()
    duplicate_proposals: int = 0
    left_out: Sequence[str] = ()
    finished: str = ""
    identity: Mapping[str, Any] = field(default_factory=dict)
    numerics: Numerics | None = None
    rehearsal: SanityCheck | None = None
    verification: Mapping[str, Any] | None = None
    prospects: Mapping[int, OptimalityGap] = field(default_factory=dict)
    estimated_peaks: Mapping[int, MemoryPeak] = field(default_factory=dict)
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    folder: Path | None = None
    complete: bool = True
    user_arguments: Any = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Trial:
        """The recommended trial. Raises NothingFits where no configuration is feasible, SearchFailed where none completed."""
        best = best_trial(self.trials, self.request.objective)
        if best is None:
            raise why_no_answer(self.trials, self.allowed_bytes)
        return best

    @property
    def baseline(self) -> Trial:
        """The user's own configuration, made exact: trial 0. Raises InvalidRequest where it was never probed."""
        if not self.trials or self.trials[0].number != 0:
            raise InvalidRequest("The search ended before its baseline was measured.", "Run the same command again.")
        return self.trials[0]

    @property
    def speedup(self) -> Interval | None:
        """How many times as fast as the baseline; a float with `.low` and `.high`. None: see `speedup_reason`.

        Raises NothingFits and SearchFailed as `best` does, InvalidRequest as `baseline` does.
        """
        return speed_up(self.best, self.baseline, self.request.objective)[0]

    @property
    def speedup_reason(self) -> str:
        """Why there is no speed-up, or why it cannot be told whether there is one and what would tell; else empty.

        Raises NothingFits, SearchFailed and InvalidRequest as `speedup` does.
        """
        self.best, self.baseline  # noqa: B018  (raise where there is nothing to compare)
        return speedup_reason(self.trials, self.request.objective, self.request.timeout_s)

    @property
    def disqualified(self) -> list[tuple[Trial, str]]:
        """Trials that were faster than the best one and could not win, with the reason, the fastest first.

        They do not learn as fp32 does, or learn differently and are not certainly faster than the baseline.
        """
        return disqualified(self.trials, self.request.objective)

    @property
    def loss_warning(self) -> str:
        """That the recommended trial does not learn as fp32 does, or that it is not known; else empty."""
        best = best_trial(self.trials, self.request.objective)
        why_none = "" if self.complete else "the search did not come to its end"
        return loss_warning(self.numerics, best, "there was no time" if LOSSES in self.left_out else why_none)

    @property
    def pareto_front(self) -> list[Trial]:
        """Trials that no other beats in both speed and memory, fastest first."""
        return pareto_front(self.trials)

    def utilization(self, trial: Trial) -> Utilization | None:
        """How much of the device's arithmetic the trial uses; None where its speed or its operations are not known."""
        return utilization(trial, self.arithmetic, self.environment, self.workload, self.request.training_args)

    def training_argument_fields(self) -> dict[str, Any]:
        """The answer as fields: micro-batch, accumulation, every setting's field, and what else the user had set.

        Raises NothingFits and SearchFailed as `best` does, and InvalidRequest, as every form of the answer does, for
        a study of another version whose settings are unknown here.
        """
        return training_arguments(self.best.configuration, self.environment, self.request.training_args)

    def model_arguments(self) -> dict[str, Any]:
        """Keywords for `AutoModelForX.from_pretrained`: dtype, and what the settings set on the model.

        Raises NothingFits and SearchFailed as `best` does.
        """
        return model_arguments(self.best.configuration, self.environment)

    def environment_variables(self) -> dict[str, str]:
        """Variables to set before the training starts; mostly none. Raises NothingFits and SearchFailed as `best` does."""
        best = self.best.configuration
        return host_environment(best, self.environment) | process_environment(best, self.environment)

    def processes(self) -> int:
        """How many processes the launcher must start, one a rank: `torchrun --nproc-per-node`.

        Raises NothingFits and SearchFailed as `best` does.
        """
        return processes(self.best.configuration, self.environment)

    def data_arguments(self) -> dict[str, Any]:
        """How samples become a batch: `pad_to_multiple_of` of the collator, `packing`, and `drop_full_attention_mask` of batches
        in which it hides nothing; empty without such settings.

        Raises NothingFits and SearchFailed as `best` does.
        """
        return data_arguments(self.best.configuration, self.environment)

    def torch_switches(self) -> dict[str, bool]:
        """Functions of `torch.backends.cuda` -> what to call them with before the training; mostly none.

        Raises NothingFits and SearchFailed as `best` does.
        """
        return torch_switches(self.best.configuration, self.environment)

    def adapter_arguments(self) -> dict[str, Any]:
        """Fields for `peft.LoraConfig`; empty where all weights are trained.

        Raises NothingFits and SearchFailed as `best` does.
        """
        return adapter_arguments(self.best.configuration, self.environment, self.workload.task)

    def for_other_tools(self) -> Answer:
        """The answer as `autotune.report.exports` makes files of it.

        Raises NothingFits and SearchFailed as `best` does, InvalidRequest for a study of another version.
        """
        hidden = self.workload.model_config.get("hidden_size")
        return Answer(
            training_arguments=self.training_argument_fields(),
            model_arguments=self.model_arguments(),
            variables=self.environment_variables(),
            adapter=self.adapter_arguments(),
            data_arguments=self.data_arguments(),
            switches=self.torch_switches(),
            data_parallel_size=self.best.configuration.data_parallel_size,
            model=named(self.workload.name),
            auto_class=_auto_class(self.workload),
            sequence_length=self.workload.sequence_length,
            threads=self.environment.threads,
            hidden_size=hidden if isinstance(hidden, int) else None,
        )


def _auto_class(workload: Workload) -> str:
    """The class that loads the model by its name; empty for the caller's own model, a built-in shape and a config file."""
    nameless = workload.user_objects or workload.source in BUILT_IN or workload.source.endswith(".json")
    return "" if nameless else auto_class(workload.task)
