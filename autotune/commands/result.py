"""TuningResult: the result of a search, and what can be done with it."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

from autotune.commands.save import fields_of_saved, save
from autotune.core import Interval, write_json
from autotune.core.errors import InvalidRequest, LossWarning
from autotune.core.real_run import RealRun
from autotune.core.request import EXPLANATION_ROUNDS, VERIFICATION_SECONDS
from autotune.core.units import counted
from autotune.core.warning import ResultWarning
from autotune.report.checks import warnings
from autotune.report.claim import claim_fields, headline, verification_of
from autotune.report.evidence import loss_fields, loss_warning
from autotune.report.markdown import sentence
from autotune.report.snippets import launch_lines
from autotune.report.trial_text import interval_of, plain_trial, speed_line, speedup_fields
from autotune.study.result import SearchResult
from autotune.study.store import REALIZED

if TYPE_CHECKING:
    import pandas as pd
    from transformers import TrainingArguments

    from autotune.commands.explain.explanation import Explanation
    from autotune.commands.verify.result import Verification
    from autotune.sampler.physics import PhysicsSampler


@dataclass(frozen=True)
class TuningResult(SearchResult):
    """The result of a search, and what can be done with it; plain data, loaded without unpickling."""

    def training_arguments(self, output_dir: str | None = None, **overrides: Any) -> "TrainingArguments":
        """The user's own arguments, of their own class (`SFTConfig`, ...), with the tuned fields in place, then the overrides.

        All else is as the user had it, the names of folder, run and hub too. If nothing was shown to be better, these are the
        user's own with the exact sizes that were measured. A result that was loaded from a folder has only
        the fields that say how to train: then it is a plain `TrainingArguments`, in the folder `output` by default.

        Warns with `LossWarning` if the answer does not train like fp32, or if that is not known.

        Args:
            output_dir: Of the arguments, instead of the user's own.
            **overrides: Other fields of `TrainingArguments`.

        Raises:
            NothingFits: No configuration is feasible.
            SearchFailed: None completed.
            InvalidRequest: The study is of another version, with settings that are unknown here.
        """
        from autotune.commands.trainer.apply import answer_arguments

        self._warn_of_losses()
        folder = {} if output_dir is None else {"output_dir": output_dir}
        return answer_arguments(self, self.user_arguments, folder | overrides)

    def sampler(self, seed: int = 0) -> "PhysicsSampler":
        """An Optuna sampler of the search's space, for its `study.db` or a study of your own.

        It knows the memory limit; the estimate of memory that a search makes first is not part of it.
        """
        from autotune.sampler.physics import PhysicsSampler
        from autotune.sampler.warm_start import WarmStart
        from autotune.space.build import build_space

        request = self.request
        space = build_space(request, self.environment, self.workload, request.training_args)
        return PhysicsSampler(space, WarmStart(self.allowed_bytes, margin=request.margin), seed)

    def arguments(self, args: Any) -> Any:
        """These training arguments, of their own class, with the answer's fields: `build(result.arguments(args)).train()`.

        For a function that builds a Trainer of its arguments. Sets TF32, switches of torch, the number of threads and whether
        regions are compiled in this process. Warns as `apply` does.

        Raises:
            InvalidRequest: A Trainer cannot be given the answer by its arguments (an adapter, four bits, packing).
            NothingFits: There is no answer.
        """
        from autotune.commands.trainer.apply import arguments_for_build

        self._warn_of_losses()
        return arguments_for_build(self, args)

    def apply(self, trainer: Any) -> Any:
        """A new Trainer that runs with the answer.

        It has the same class, data, collator, callbacks, metrics and own optimizer.

        Its arguments are the Trainer's own, of their own class, with the tuned fields in place; its collator pads, and leaves
        out a mask that hides nothing, as the answer says; callbacks that were removed stay removed. It shares the model with
        the Trainer that is given, which is otherwise left as it is (build that one with a `model_init` to have a new model):
        if the answer is without activation checkpointing, the model's is switched off. Switches of torch and the number of
        threads are set in this process.

        Warns with `NotApplied` of what has to be done elsewhere (weights' dtype, variables, ranks), with `BatchSizeChanged` if
        the Trainer's arguments state another global batch size, unless the search began with these sizes and requested
        another one, and with `LossWarning` as `training_arguments` does.

        Args:
            trainer: The Trainer, which is not changed.

        Raises:
            InvalidRequest: A built model cannot take the answer (an adapter, four bits, packing), or the Trainer is not as a
                fresh one of its parts: use `arguments`.
            NothingFits: There is no answer.
        """
        from autotune.commands.trainer.apply import applied

        self._warn_of_losses()
        return applied(self, trainer)

    @property
    def promised_speed(self) -> Interval:
        """Samples / second of the answer: by the plain trainings of `verify`, else by the search. Raises as `best` does."""
        figures = verification_of(self).get("measured", {}).get("answer") or {}
        verified = None if self.refuted else interval_of(figures, "samples_per_second")
        speed = verified or self.best.samples_per_second
        assert speed is not None  # an answer has a speed
        return speed

    def keep_real_run(self, run: RealRun, teaches: bool) -> None:
        """Write a real training's speed to realized.json in the result's folder, if it has one; a disk error is ignored.

        teaches: remember it for later searches on this device.
        """
        from autotune.study.history import remember_run  # loads NumPy

        with contextlib.suppress(OSError):
            if self.folder is not None:
                write_json(self.folder / REALIZED, run.to_dict())
        if teaches:
            remember_run(self.environment, self.identity, run)

    def _warn_of_losses(self) -> None:
        if warning := loss_warning(self):
            warn(sentence(warning.text), LossWarning, stacklevel=3)

    @property
    def warnings(self) -> tuple[ResultWarning, ...]:
        """Reasons against trusting the answer, as in the summary; each with kind, numbers and text.

        Warnings of the study, the best trial and the baseline, and losses that are not as fp32's or were not compared.
        """
        return warnings(self)

    def verify(
        self, seconds: float = VERIFICATION_SECONDS, watch: Callable[[str], None] | bool | None = None
    ) -> "Verification":
        """Train with the user's settings and with the answer in turns, and compare the speed-up with the promised one.

        Arguments and errors as of `autotune.verify`.

        Raises InvalidRequest if the result is in no folder.
        """
        from autotune.commands.verify.run import verify

        return verify(self._saved_in(), seconds, watch)

    def explain(
        self, rounds: int = EXPLANATION_ROUNDS, fresh: bool = False, watch: Callable[[str], None] | bool | None = None
    ) -> "Explanation":
        """Explanation of the speed-up, setting by setting; arguments and errors as of `autotune.explain`.

        Raises InvalidRequest if the result is in no folder.
        """
        from autotune.commands.explain.run import explain

        return explain(self._saved_in(), rounds, fresh, watch)

    def _saved_in(self) -> Path:
        if self.folder is None:
            raise InvalidRequest("This result is in no folder.", "Write it with result.save(FOLDER), and load that.")
        return self.folder

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data: what `--json` prints. Speeds are samples / second, peaks bytes.

        Raises InvalidRequest as `setup` does.
        """
        setup = self.best_setup
        return {
            "headline": headline(self),
            **claim_fields(self),
            "statement": self.stop_reason,
            "stop": self.stop.to_dict(),
            "best": plain_trial(self.best_trial, self.standing),
            "baseline": plain_trial(self.baseline_trial, self.standing),
            "substitute": plain_trial(self.substitute, self.standing),
            **speedup_fields(self),
            "warnings": [warning.to_dict() for warning in self.warnings],
            "disqualified": [
                {**(plain_trial(trial, self.standing) or {}), "reason": reason} for trial, reason in self.disqualified
            ],
            "losses": loss_fields(self),
            "sanity_check": self.sanity_check and self.sanity_check.to_dict() | {"text": self.sanity_check.lines()},
            "training_arguments": setup.training_arguments,
            "model_arguments": setup.model_arguments,
            "environment_variables": setup.variables,
            "processes": setup.processes,
            "launch": launch_lines(self),
            "data_arguments": setup.data_arguments,
            "adapter": setup.adapter,
            "torch_switches": setup.switches,
            "memory_limit_bytes": self.memory_limit_bytes,
            "allowed_bytes": self.allowed_bytes,
            "trials": len(self.trials),
            **({"real_run": self.real_run.to_dict() | {"held": self.real_run.held}} if self.real_run else {}),
            **({"devices": [device.to_dict() for device in self.devices]} if self.devices else {}),
            "autotune_version": self.environment.autotune_version,
            "folder": None if self.folder is None else str(self.folder),
        }

    def to_frame(self) -> "pd.DataFrame":
        """One row a trial; columns, dtypes and units as `autotune.report.columns` documents them."""
        from autotune.report.table import frame

        return frame(self.trials, self.utilizations, self.request.objective, self.refuted)

    def export(self, path: str | Path, format: str | None = None) -> Path:
        """Write the frame as csv, parquet, jsonl or markdown, by default as the path ends; returns the path.

        Raises InvalidRequest for another format, StorageFailed if the disk refuses.
        """
        from autotune.report.files import write_table

        return write_table(Path(path), self.to_frame(), format)

    def __repr__(self) -> str:
        """One line: a dataclass's own would print every step of every probe."""
        best = self.best_trial
        answer = self.why_no_best
        if best:
            answer = f"{speed_line(best, self.standing)}; trial {best.number}: {best.configuration}"
        return f"<TuningResult {self.workload.name}, {counted(len(self.trials), 'trial')}: {answer}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks. Never raises: a study of another version, whose settings are unknown here, is one line."""
        try:
            from autotune.report.notebook import notebook_html

            return notebook_html(self)
        except Exception:  # a cell must show something
            return f"<pre>{escape(repr(self))}</pre>"

    def save(self, folder: str | Path) -> Path:
        """Write the whole report folder; returns it. Raises StorageFailed if the disk refuses, InvalidRequest as `setup`."""
        return save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> "TuningResult":
        """The result in a report folder. Raises InvalidRequest if there is none or it is damaged."""
        return cls(**fields_of_saved(folder))
