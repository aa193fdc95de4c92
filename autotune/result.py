"""TuningResult: what a search found; each method is one call downwards."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.environment import Environment
from autotune.errors import InvalidRequest, NothingFits
from autotune.interval import Interval
from autotune.numerics import Numerics
from autotune.objective import best_trial, pareto_front, speed_up
from autotune.probe.order import read_json
from autotune.rehearsal import Rehearsal
from autotune.report.evidence import numerics_lines, rehearsal_lines
from autotune.report.exports import Answer, auto_class
from autotune.report.files import write_question, write_report
from autotune.report.plain import launch_lines, plain_trial, speedup_fields
from autotune.report.summary import Facts, headline
from autotune.request import TuningRequest
from autotune.search_space import RuledOut
from autotune.study_folder import REQUEST, VERIFICATION, read_trial
from autotune.training_arguments import (
    adapter_arguments,
    data_arguments,
    host_environment,
    model_arguments,
    process_environment,
    processes,
    torch_switches,
    training_arguments,
)
from autotune.trial import Trial
from autotune.workload import Workload

if TYPE_CHECKING:
    import pandas as pd
    from transformers import TrainingArguments


@dataclass(frozen=True)
class TuningResult:
    """The answer of a search and everything it stands on; plain data, loaded without unpickling.

    trials: in the order of their numbers, 0 the baseline. statement: why the search ended. ruled_out: values that were
    never probed, with the reason. space_size: configurations that could be proposed. answered_at_once: proposals
    that earlier trials already answered. allowed_bytes: limit x (1 - headroom). numerics: loss curves of the finalists and
    of fp32; rehearsal: the winner's evaluation batch and checkpoint; verification: what `autotune verify` found; each
    None where it was not made. folder: where the report is, if saved.
    """

    request: TuningRequest
    workload: Workload
    environment: Environment
    trials: Sequence[Trial]
    statement: str
    memory_limit_bytes: int
    allowed_bytes: int
    space_size: int = 0
    ruled_out: Sequence[RuledOut] = ()
    notes: Sequence[str] = ()
    answered_at_once: int = 0
    identity: Mapping[str, Any] = field(default_factory=dict)
    numerics: Numerics | None = None
    rehearsal: Rehearsal | None = None
    verification: Mapping[str, Any] | None = None
    folder: Path | None = None

    @property
    def best(self) -> Trial:
        """The recommended trial. Raises NothingFits where no configuration is feasible."""
        best = best_trial(self.trials, self.request.objective)
        if best is None:
            raise NothingFits("No configuration that was tried fits.", "Raise --memory-limit or lower the headroom.")
        return best

    @property
    def baseline(self) -> Trial:
        """The user's own configuration, made exact: trial 0. Raises InvalidRequest where it was never probed."""
        if not self.trials or self.trials[0].number != 0:
            raise InvalidRequest("The search ended before its baseline was measured.", "Run the same command again.")
        return self.trials[0]

    @property
    def speedup(self) -> Interval | None:
        """How many times as fast as the baseline; a float with `.low` and `.high`. None: see `speedup_reason`."""
        return speed_up(self.best, self.baseline, self.request.objective)[0]

    @property
    def speedup_reason(self) -> str:
        """Why there is no speed-up; empty where there is one."""
        return speed_up(self.best, self.baseline, self.request.objective)[1]

    @property
    def pareto_front(self) -> list[Trial]:
        """Trials that no other beats in both speed and memory, fastest first."""
        return pareto_front(self.trials)

    def training_argument_fields(self) -> dict[str, Any]:
        """The answer as fields: micro-batch, accumulation, every lever's field, and what else the user had set.

        With the evaluation's batch size that was checked, where one was.
        """
        fields = training_arguments(self.best.configuration, self.environment, self.request.training_args)
        checked = self.rehearsal.eval_batch_size if self.rehearsal else None
        return fields if checked is None else fields | {"per_device_eval_batch_size": checked}

    def training_arguments(self, output_dir: str = "output", **overrides: Any) -> "TrainingArguments":
        """A real `TrainingArguments`: the user's base, the tuned fields, then the overrides."""
        from transformers import TrainingArguments

        return TrainingArguments(output_dir=output_dir, **(self.training_argument_fields() | overrides))

    def model_arguments(self) -> dict[str, Any]:
        """Keywords for `AutoModelForX.from_pretrained`: dtype, and what the levers set on the model."""
        return model_arguments(self.best.configuration, self.environment)

    def environment_variables(self) -> dict[str, str]:
        """Variables to set before the training starts; mostly none."""
        best = self.best.configuration
        return host_environment(best, self.environment) | process_environment(best, self.environment)

    def processes(self) -> int:
        """How many processes the launcher must start, one a rank: `torchrun --nproc-per-node`."""
        return processes(self.best.configuration, self.environment)

    def data_arguments(self) -> dict[str, Any]:
        """How samples become a batch: `pad_to_multiple_of` of the collator and `packing`; empty without such levers."""
        return data_arguments(self.best.configuration, self.environment)

    def torch_switches(self) -> dict[str, bool]:
        """Functions of `torch.backends.cuda` -> what to call them with before the training; mostly none."""
        return torch_switches(self.best.configuration, self.environment)

    def adapter_arguments(self) -> dict[str, Any]:
        """Fields for `peft.LoraConfig`; empty where all weights are trained."""
        return adapter_arguments(self.best.configuration, self.environment, self.workload.task)

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data: what `--json` prints. Speeds are samples / second, peaks bytes."""
        facts = self.facts()
        return {
            "headline": headline(facts),
            "statement": self.statement,
            "best": plain_trial(facts.best),
            "baseline": plain_trial(facts.baseline),
            **speedup_fields(facts),
            "losses": numerics_lines(self.numerics, facts.best),
            "also_checked": rehearsal_lines(self.rehearsal),
            "training_arguments": facts.answer,
            "model_arguments": facts.model_answer,
            "environment_variables": facts.variables,
            "processes": facts.processes,
            "launch": launch_lines(facts),
            "data_arguments": facts.data_answer,
            "adapter": facts.adapter,
            "torch_switches": facts.switches,
            "memory_limit_bytes": self.memory_limit_bytes,
            "allowed_bytes": self.allowed_bytes,
            "trials": len(self.trials),
            "folder": None if self.folder is None else str(self.folder),
        }

    def to_frame(self) -> "pd.DataFrame":
        """One row a trial; columns and dtypes as `autotune.report.table.frame` documents them."""
        from autotune.report.table import frame

        return frame(self.trials)

    def facts(self) -> Facts:
        """What reports tell of this result, as plain values."""
        best = best_trial(self.trials, self.request.objective)
        first = self.trials[0] if self.trials and self.trials[0].number == 0 else None
        speedup, reason = (
            (None, "there is nothing to compare")
            if not (best and first)
            else speed_up(best, first, self.request.objective)
        )
        environment, workload = self.environment, self.workload
        return Facts(
            name=self.request.default_study_name(workload.task, environment.device),
            trials=self.trials,
            best=best,
            baseline=first,
            speedup=speedup,
            speedup_reason=reason,
            statement=self.statement,
            answer=self.training_argument_fields() if best else {},
            model_answer=self.model_arguments() if best else {},
            variables=self.environment_variables() if best else {},
            processes=self.processes() if best else 1,
            data_answer=self.data_arguments() if best else {},
            adapter=self.adapter_arguments() if best else {},
            switches=self.torch_switches() if best else {},
            model=f"{workload.name} ({workload.architecture}, {workload.parameters / 1e6:.1f} million parameters)",
            task=workload.task,
            device=f"{environment.device} ({environment.device_name}, {environment.threads} threads)",
            versions=environment.versions,
            data=_data_text(self.request, workload),
            objective=self.request.objective,
            limit_bytes=self.memory_limit_bytes,
            allowed_bytes=self.allowed_bytes,
            ruled_out=[str(one) for one in self.ruled_out],
            notes=[*self.notes, *workload.notes],
            answered_at_once=self.answered_at_once,
            device_note=_device_note(environment, self.processes() if best else 1),
            numerics=self.numerics,
            rehearsal=self.rehearsal,
            verification=self.verification,
            elsewhere=self.for_other_tools() if best else None,
        )

    def for_other_tools(self) -> Answer:
        """The answer as `autotune.report.exports` makes files of it."""
        hidden = self.workload.model_config.get("hidden_size")
        return Answer(
            training_arguments=self.training_argument_fields(),
            model_arguments=self.model_arguments(),
            variables=self.environment_variables(),
            adapter=self.adapter_arguments(),
            data_arguments=self.data_arguments(),
            switches=self.torch_switches(),
            data_parallel_size=self.best.configuration.data_parallel_size,
            model=self.workload.name,
            auto_class=auto_class(self.workload.task),
            sequence_length=self.workload.sequence_length,
            threads=self.environment.threads,
            hidden_size=hidden if isinstance(hidden, int) else None,
        )

    def save(self, folder: str | Path) -> Path:
        """Write the whole report folder; returns it. Raises StorageFailed where the disk refuses."""
        facts = self.facts()
        ended = {
            "statement": self.statement,
            "best": facts.best and facts.best.number,
            **speedup_fields(facts),
            "launch": launch_lines(facts),
            "answered_at_once": self.answered_at_once,
            "barred": {str(trial.number): trial.barred for trial in self.trials if trial.barred},
            "numerics": self.numerics and self.numerics.to_dict(),
            "rehearsal": self.rehearsal and self.rehearsal.to_dict(),
        }
        self.begin(folder)
        return write_report(Path(folder), facts, ended)

    def begin(self, folder: str | Path) -> None:
        """Write what is known before the first probe: request.json and environment.json. Raises StorageFailed."""
        record = {
            "request": _without_places(self.request.to_dict()),
            "workload": self.workload.to_dict() | {"weights": Path(self.workload.weights).name},
            "identity": self.identity,
            "memory_limit_bytes": self.memory_limit_bytes,
            "allowed_bytes": self.allowed_bytes,
            "space_size": self.space_size,
            "ruled_out": [asdict(one) for one in self.ruled_out],
            "notes": list(self.notes),
        }
        write_question(Path(folder), record, self.environment.to_dict())

    @classmethod
    def load(cls, folder: str | Path) -> "TuningResult":
        """The result that lies in a report folder. Raises InvalidRequest where there is none or it is damaged."""
        folder = Path(folder)
        try:
            record = read_json(folder / REQUEST)
            ended = read_json(folder / "result.json") if (folder / "result.json").exists() else {}
            numbers = sorted(int(path.name) for path in (folder / "probes").glob("*") if path.name.isdigit())
            known = [read_trial(folder / "probes" / f"{number:04d}", number) for number in numbers]
            request = TuningRequest.from_dict(record["request"])
            known = [one and one.over(request.training_steps) for one in known]
            barred = ended.get("barred", {})
            numerics, rehearsal = ended.get("numerics"), ended.get("rehearsal")
            return cls(
                request=request,
                workload=Workload.from_dict(record["workload"]),
                environment=Environment.from_dict(read_json(folder / "environment.json")),
                trials=[replace(one, barred=barred.get(str(one.number), "")) for one in known if one is not None],
                statement=ended.get("statement", "the search was interrupted"),
                memory_limit_bytes=record["memory_limit_bytes"],
                allowed_bytes=record["allowed_bytes"],
                space_size=record["space_size"],
                ruled_out=[RuledOut(**one) for one in record["ruled_out"]],
                notes=record["notes"],
                identity=record["identity"],
                answered_at_once=ended.get("answered_at_once", 0),
                numerics=Numerics.from_dict(numerics) if numerics else None,
                rehearsal=Rehearsal.from_dict(rehearsal) if rehearsal else None,
                verification=read_json(folder / VERIFICATION) if (folder / VERIFICATION).exists() else None,
                folder=folder,
            )
        except FileNotFoundError as error:
            raise InvalidRequest(
                f"There is no study in {folder}.", "`autotune studies` lists those there are."
            ) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(
                f"The study in {folder} cannot be read: {error!r}.", "Search again with --fresh."
            ) from error


def _without_places(request: dict[str, Any]) -> dict[str, Any]:
    """The request with names instead of absolute paths: a report folder tells no one where a machine keeps its files."""
    kept = {name: Path(value).name if _is_place(value) else value for name, value in request.items()}
    return kept | {"output_dir": "reports"}


def _is_place(value: Any) -> bool:
    return isinstance(value, str) and Path(value).is_absolute()


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
