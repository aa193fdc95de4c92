"""TuningResult: what a search found; each method is one call downwards."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.found import Found
from autotune.report.evidence import numerics_lines, rehearsal_lines
from autotune.report.facts import Facts
from autotune.report.plain import launch_lines, plain_trial, speedup_fields
from autotune.report.summary import headline
from autotune.saved import fields_of_saved, save
from autotune.telling import facts_of

if TYPE_CHECKING:
    import pandas as pd
    from transformers import TrainingArguments


@dataclass(frozen=True)
class TuningResult(Found):
    """The answer of a search: `Found`, with the doors that people use; plain data, loaded without unpickling."""

    def training_arguments(self, output_dir: str = "output", **overrides: Any) -> "TrainingArguments":
        """A real `TrainingArguments`: the user's base, the tuned fields, then the overrides.

        Raises NothingFits as `best` does.
        """
        from transformers import TrainingArguments

        return TrainingArguments(output_dir=output_dir, **(self.training_argument_fields() | overrides))

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
        return facts_of(self)

    def save(self, folder: str | Path) -> Path:
        """Write the whole report folder; returns it. Raises StorageFailed where the disk refuses."""
        return save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> "TuningResult":
        """The result that lies in a report folder. Raises InvalidRequest where there is none or it is damaged."""
        return cls(**fields_of_saved(folder))
