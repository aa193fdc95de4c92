"""What the user's micro-batches hold: batches that a loader decides are told from those that were asked for."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from transformers import Trainer, TrainingArguments, default_data_collator

from autotune.core.kept import Held, KeptSetting
from autotune.probe.train.batch_contents import Reached, looked_at, other_rows
from tests.makers import cpu
from tests.probe.probes import configuration, make_order

Contents = tuple[Held, tuple[KeptSetting, ...]]


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(12, 3)

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.layer(pixels.flatten(1)), labels)}


class Images(Dataset[Any]):
    def __init__(self, *together: int) -> None:
        self.together = together

    def __len__(self) -> int:
        return 64

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        return {
            "pixels": torch.ones(*self.together, 3, 2, 2),
            "labels": torch.full(self.together, place % 3, dtype=torch.int64),
        }


class Batches(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([Images(4)[place] for place in range(64)])


class FoursOnly:
    """A batch sampler without a batch size."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[*range(place, place + 4)] for place in range(0, 64, 4)])


class OwnBatches(Trainer):
    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_sampler=FoursOnly(), collate_fn=default_data_collator)


class ReadyBatches(Trainer):
    def get_train_dataloader(self) -> Any:
        return DataLoader(self.train_dataset, batch_size=None)


class Slices(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return super().compute_loss(model, {name: value[:1] for name, value in inputs.items()}, *args, **kwargs)


class LeavesOut(Trainer):
    """No short batch at the end of an epoch: 64 samples are 10 batches of 6, which are 5 steps, and 64 of 1, which are 6."""

    def get_train_dataloader(self) -> Any:
        size = self._train_batch_size
        return DataLoader(self.train_dataset, batch_size=size, drop_last=True, collate_fn=default_data_collator)


class Halves(Trainer):
    """Two forwards for each micro-batch."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        halves = [{name: value[at::2] for name, value in inputs.items()} for at in range(min(2, len(inputs["labels"])))]
        return sum(model(**half)["loss"] for half in halves)


class Refuses(Trainer):
    """A loader of one size only."""

    def get_train_dataloader(self) -> Any:
        assert self.args.per_device_train_batch_size == 4
        return super().get_train_dataloader()


def first(rows: list[Any]) -> Any:
    return rows[0]


def longest(rows: list[Any]) -> Any:
    return default_data_collator(rows[:1])


def contents(folder: Path, kind: type[Trainer], micro: int = 4, data: Any = None, collator: Any = None) -> Contents:
    """What two steps of this Trainer held, and what it decides by itself."""
    quiet: dict[str, Any] = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    args = TrainingArguments(str(folder), max_steps=2, per_device_train_batch_size=micro, **quiet)
    trainer = kind(Net(), args, data_collator=collator or default_data_collator, train_dataset=data or Images())
    rows, reached = [0, 0, 0], Reached(trainer)
    train = trainer.training_step

    def step(model: Any, inputs: Any, *more: Any, **kwargs: Any) -> Any:
        tensor = inputs["pixels"]
        rows[:] = rows[0] + len(tensor), rows[1] + tensor.numel(), rows[2] + 1
        reached.begin(inputs)
        return train(model, inputs, *more, **kwargs)

    trainer.training_step = step
    trainer.train()
    reached.close()
    shares, asked = reached.shares, rows[2] * micro
    held = Held(shares[0] * rows[0] / asked, shares[1] * rows[1] / asked)
    of = replace(configuration(micro), gradient_accumulation_steps=2)
    return looked_at(make_order(folder, cpu(), asked=of), trainer, held, shares)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "data", "collator", "rows"),
    [
        (Trainer, Images(4), first, 4),
        (OwnBatches, None, None, 4),
        (ReadyBatches, Batches(), None, 4),
        (Slices, None, None, 1),
        (Trainer, None, longest, 1),
    ],
)
@pytest.mark.parametrize("micro", [2, 4])
def test_a_batch_that_does_not_follow_the_size_that_is_asked_for_is_the_loader_s(
    tmp_path: Path, kind: type[Trainer], data: Any, collator: Any, rows: int, micro: int
) -> None:
    held, kept = contents(tmp_path, kind, micro, data, collator)
    assert held.rows * micro == pytest.approx(rows)
    assert held.counts_rows
    assert [(each.setting, each.numbers) for each in kept] == [
        ("micro_batch_size", {"rows": rows, "step_rows": 2 * rows})
    ]


@pytest.mark.parametrize(
    ("kind", "data", "rows", "counts"),
    [(Trainer, None, 1, True), (Trainer, Images(3), 1, True), (Halves, None, 1, True), (Refuses, None, 1, False)],
)
def test_what_follows_the_size_or_cannot_be_looked_at_is_searched(
    tmp_path: Path, kind: type[Trainer], data: Any, rows: int, counts: bool
) -> None:
    collator = default_data_collator if data is None else joined
    held, kept = contents(tmp_path, kind, 4, data, collator)
    assert (held.rows, held.counts_rows, kept) == (rows if data is None else 3, counts and data is None, ())


def test_of_a_loader_whose_epochs_have_other_steps_with_another_size_the_size_is_kept(tmp_path: Path) -> None:
    held, kept = contents(tmp_path, LeavesOut, 6)
    assert held.counts_rows
    assert [(each.setting, each.numbers) for each in kept] == [
        ("micro_batch_size", {"steps": 18.0, "size": 1.0, "own": 15.0})
    ]


def joined(rows: list[Any]) -> Any:
    """Several crops of each image: 3 rows for each sample."""
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def test_a_trial_with_other_rows_tells_both_numbers(tmp_path: Path) -> None:
    order = make_order(tmp_path, cpu(), asked=configuration(4), held=Held(1.0, 12.0))
    kept, failure = other_rows(order, Held(0.25, 3.0))  # type: ignore[arg-type]
    assert [(each.setting, each.numbers) for each in kept] == [
        ("micro_batch_size", {"size": 4, "rows": 1.0, "wanted": 4.0})
    ]
    assert failure.outcome.value == "misconfigured"
    assert failure.reason.startswith("a micro-batch of 4 held 1 rows instead of 4")


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (Held(1, 50), Held(1.1, 80), True),  # padded to other lengths
        (Held(1, 50), Held(0.25, 48), True),  # samples that share a row
        (Held(1, 50), Held(0.25, 12.5), False),
        (Held(0, 0), Held(1, 50), False),
    ],
)
def test_contents_are_alike_in_rows_or_in_values(one: Held, other: Held, alike: bool) -> None:
    assert one.is_like(other) == other.is_like(one) == alike
