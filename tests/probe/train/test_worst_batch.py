"""The batch that needs the most memory: found in the data, trained on first, and timed never."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from autotune.core import Environment, Measurement, Outcome, Workload
from autotune.probe.order import Order
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.train.worst_batch import WORST_STEPS, WorstBatch, feed, tokens_per_sample, worst_batch
from autotune.workload.data.sampling import repeat_batches
from tests.probe.probes import MIB, configuration, make_order, measured

STAGES = ["build", "data", "forward", "backward", "optimizer"]
LONG = 200
"""Place of the one long line among the short ones."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 short lines and one that is a hundred times as long."""
    words = [f"line {number} of few words\n" for number in range(400)]
    words.insert(LONG, "word " * 1000 + "\n")
    path = tmp_path_factory.mktemp("lines") / "lines.txt"
    path.write_text("".join(words), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def real(workload_of: Callable[..., Workload], lines: Path) -> Workload:
    """A small GPT-2 on these lines, cut at 192 tokens."""
    return workload_of("gpt2-mini", dataset=str(lines), sequence_length=192)


@pytest.fixture
def train(host: ProbeHost, environment: Environment, tmp_path: Path) -> Callable[..., Measurement]:
    def training(workload: Workload, micro: int, accumulation: int = 1, **fields: Any) -> Measurement:
        asked = configuration(micro, accumulation)
        measurement = measured(host, make_order(tmp_path, environment, workload=workload, asked=asked, **fields))
        assert measurement.outcome is Outcome.COMPLETED, measurement.reason
        return measurement

    return training


# Real probes ----------------------------------------------------------------------------------------------------


def test_memory_is_that_of_the_longest_sample_and_time_that_of_the_ordinary_ones(
    train: Callable[..., Measurement], real: Workload
) -> None:
    assert real.longest == (LONG,)
    worst = train(real, 4)
    usual = train(replace(real, longest=()), 4)
    assert worst.worst_batch == f"4 x sample {LONG}, the longest of the data"
    assert usual.worst_batch == ""
    assert worst.untimed_steps == usual.untimed_steps + WORST_STEPS
    assert [step.tokens for step in worst.steps] == [step.tokens for step in usual.steps]
    assert [step.non_padding_tokens for step in worst.steps] == [step.non_padding_tokens for step in usual.steps]
    assert max(step.tokens for step in worst.steps) < 4 * 64, "the long line is not among the timed ones"
    # One batch of a hundred holds the long sample: 192 tokens instead of 7 to 8.
    assert usual.tokens_per_sample is None
    assert 7.0 < (worst.tokens_per_sample or 0.0) < 10.0
    assert worst.samples_per_second is not None
    assert worst.micro_batch_bytes == 3 * 8 * 4 * 192 > usual.micro_batch_bytes
    assert worst.peak_bytes is not None
    assert usual.peak_bytes is not None
    # The logits alone: 4 samples x 170 more tokens x the vocabulary x 4 bytes, and more of the like.
    logits = 4 * 170 * int(real.model_config["vocab_size"]) * 4
    assert worst.peak_bytes > usual.peak_bytes + logits
    for measurement in (worst, usual):
        assert list(measurement.stage_peak_bytes) == STAGES
        assert measurement.peak_bytes is not None
        assert 0 < max(measurement.stage_peak_bytes.values()) <= measurement.peak_bytes
    assert worst.stage_peak_bytes["forward"] > usual.stage_peak_bytes["forward"] + logits


def test_a_limit_that_only_the_longest_sample_breaks_is_broken(
    host: ProbeHost, environment: Environment, real: Workload, train: Callable[..., Measurement], tmp_path: Path
) -> None:
    usual = train(replace(real, longest=()), 16)
    allowed = (usual.peak_bytes or 0) + 40 * MIB
    order = make_order(tmp_path, environment, workload=real, asked=configuration(16), allowed_bytes=allowed)
    measurement = measured(host, order)
    assert measurement.outcome is Outcome.OUT_OF_MEMORY, "the ordinary batches alone would have fitted"
    assert measurement.where in ("forward", "backward")
    assert measurement.steps == ()


# How it is made -------------------------------------------------------------------------------------------------


def order(longest: tuple[int, ...], micro: int) -> Order:
    workload = Workload(name="some", task="causal-lm", longest=longest)
    return Order(kind="probe", folder="", deadline_s=1.0, workload=workload, configuration=configuration(micro))


def trainer_on(dataset: list[Any]) -> Any:
    """A Trainer's loader whose collator keeps the samples as they are."""
    loader = SimpleNamespace(dataset=dataset, collate_fn=list)
    return SimpleNamespace(get_train_dataloader=lambda: loader)


def test_the_average_batch_is_of_the_same_random_samples_whatever_its_size() -> None:
    def of(micro: int, shuffled: bool = True) -> float | None:
        samples = [torch.zeros(1 + place % 7, dtype=torch.long) for place in range(60)]
        padded = lambda batch: {"input_ids": torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)}  # noqa: E731
        loader = DataLoader(samples, batch_size=micro, shuffle=shuffled, collate_fn=padded)  # type: ignore[arg-type]
        return tokens_per_sample(order((6,), micro), SimpleNamespace(get_train_dataloader=lambda: loader))

    assert of(1) == pytest.approx(sum(1 + place % 7 for place in range(60)) / 60), "without padding that of the data"
    assert of(60) == 7.0
    assert of(4) == of(4)
    assert 4.0 < (of(4) or 0.0) < 7.0
    assert of(4, shuffled=False) is None


def test_a_sample_of_several_rows_has_the_tokens_of_all() -> None:
    rows = [torch.zeros(3, dtype=torch.long)] * 8
    pairs = lambda batch: {"input_ids": torch.stack([*batch, *batch])}  # noqa: E731
    loader = DataLoader(rows, batch_size=4, shuffle=True, collate_fn=pairs)  # type: ignore[arg-type]
    assert tokens_per_sample(order((6,), 4), SimpleNamespace(get_train_dataloader=lambda: loader)) == 6.0


class Buckets(BatchSampler):
    """Samples of one length together, as they come; short batches at the end."""

    def __init__(self, samples: list[Any], size: int) -> None:
        super().__init__(RandomSampler(samples), size, drop_last=False)
        self.samples = samples

    def __iter__(self) -> Iterator[list[int]]:
        for length in sorted({*map(len, self.samples)}):
            places = [place for place in range(len(self.samples)) if len(self.samples[place]) == length]
            yield from (places[begin : begin + self.batch_size] for begin in range(0, len(places), self.batch_size))


def in_buckets(collate: Callable[[list[Any]], Any] = torch.stack) -> Any:
    """A Trainer whose loader makes batches of one length, which its collator stacks: 7 samples of 1, 2 and 3 tokens."""
    samples = [torch.zeros(1 + place % 3, dtype=torch.long) for place in range(7)]
    loader = DataLoader(samples, batch_sampler=Buckets(samples, 2), collate_fn=collate)  # type: ignore[arg-type]
    return SimpleNamespace(get_train_dataloader=lambda: loader)


def test_of_a_sampler_of_the_user_s_the_worst_batch_is_its_own(tmp_path: Path) -> None:
    trainer = in_buckets()
    assert tokens_per_sample(order((2,), 4), trainer) is None
    made = worst_batch(order((2,), 4), trainer)
    assert made is not None
    assert made.batches[0].shape == (2, 3)
    assert made.origin == "your sampler's batch of sample 2, the longest of the data"
    repeat_batches(trainer, 12)
    assert [len(batch) for batch in trainer.get_train_dataloader()] == [2, 1, 2, 2] * 3, (
        "no batch is filled from others"
    )


def test_a_look_at_the_data_that_fails_ends_nothing() -> None:
    def refuse(_: Any) -> Any:
        raise ValueError("no batch of these")

    loader = DataLoader([torch.zeros(1), torch.zeros(2)], batch_size=2, shuffle=True, collate_fn=refuse)  # type: ignore[arg-type]
    for trainer in (in_buckets(refuse), SimpleNamespace(get_train_dataloader=lambda: loader)):
        assert worst_batch(order((1,), 2), trainer) is None
        assert tokens_per_sample(order((1,), 2), trainer) is None


@pytest.mark.parametrize(
    ("longest", "micro", "samples", "named"),
    [
        ((2,), 3, "ccc", "3 x sample 2"),
        ((2, 0), 1, "c", "1 x sample 2"),
        ((2, 0), 5, "cacac", "5 x sample 2 and 0"),
        ((3, 1, 0), 4, "dbad", "4 x sample 3 and 1 and 0"),
    ],
)
def test_the_longest_fill_the_micro_batch_in_turn(
    longest: tuple[int, ...], micro: int, samples: str, named: str
) -> None:
    made = worst_batch(order(longest, micro), trainer_on(list("abcd")))
    assert made is not None
    assert made.batches[0] == list(samples)
    in_turn = [longest[place % len(longest)] for place in range(3 * micro)]
    assert made.micro_batches(3, "cpu") == [
        ["abcd"[place] for place in in_turn[begin : begin + micro]] for begin in range(0, 3 * micro, micro)
    ]
    assert made.origin == f"{named}, the longest of the data"


def test_the_trainer_takes_as_many_steps_on_it_as_asked_and_then_goes_on_with_the_data() -> None:
    def fetch(batches: Iterator[Any], number: int, device: Any) -> tuple[list[Any], int]:
        return [next(batches) for _ in range(number)], number

    trainer = SimpleNamespace(get_batch_samples=fetch)
    worst = {"x": torch.zeros(2)}
    feed(trainer, WorstBatch((worst,), "made"), 2)
    data = iter([{"x": torch.full((2,), float(place))} for place in range(1, 7)])
    taken = [trainer.get_batch_samples(data, 3, "cpu")[0] for _ in range(4)]
    assert [[float(batch["x"][0]) for batch in step] for step in taken] == [[0] * 3, [0] * 3, [1, 2, 3], [4, 5, 6]]
    taken[0][0]["x"] += 5
    assert not worst["x"].any(), "the Trainer's own copies"
