"""Batches padded to a multiple, packed and grouped: trained for real on texts of many lengths."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, DataCollatorWithFlattening, Trainer, TrainerCallback

from autotune.core import Measurement, Workload
from autotune.probe.train.control import TrialControl
from autotune.workload.data.collate import collated_as_asked
from autotune.workload.data.sampling import (
    RepeatedBatches,
    SpreadSteps,
    collating,
    repeat_batches,
    spread_steps,
    user_collating,
)
from autotune.workload.model.build import build_model, model_outline
from tests.trainers import Numbers, built
from tests.workload.data.test_collate import text_file

Train = Callable[..., Measurement]


@pytest.fixture
def texts(workload_of: Callable[..., Workload], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Workload]:
    """`texts("gpt2-mini")`: that model on paragraphs of up to 64 tokens."""
    data = text_file(tmp_path_factory.getbasetemp())

    def workload(model: str) -> Workload:
        return workload_of(model, dataset=str(data), sequence_length=64)

    return workload


@pytest.fixture
def on_texts(train: Train, texts: Callable[..., Workload]) -> Train:
    def on_texts(model: str = "gpt2-mini", **settings: Any) -> Measurement:
        measurement = train(texts(model), micro=4, **settings)
        assert {step.samples for step in measurement.steps} == {8}
        return measurement

    return on_texts


def test_batches_are_padded_to_the_multiple_asked_for(on_texts: Train) -> None:
    measurement = on_texts("bert-mini", padding="32")
    assert all(step.tokens % 32 == 0 for step in measurement.steps)
    assert all(0 < step.non_padding_tokens < step.tokens for step in measurement.steps)
    assert measurement.worst_batch


def test_packed_batches_have_no_padding_and_as_many_samples(on_texts: Train) -> None:
    packed, plain = on_texts(packing="flattening"), on_texts(packing="none")
    for one, other in zip(packed.steps, plain.steps, strict=True):
        assert one.tokens == one.non_padding_tokens == other.non_padding_tokens, "the same samples"
    assert sum(step.tokens for step in plain.steps) > sum(step.tokens for step in packed.steps)
    assert packed.worst_batch == plain.worst_batch


def test_grouped_batches_have_less_padding_and_the_same_worst_batch(on_texts: Train) -> None:
    grouped, random = on_texts(batching="group_by_length"), on_texts(batching="random")
    shares = [
        sum(step.non_padding_tokens for step in item.steps) / sum(step.tokens for step in item.steps)
        for item in (grouped, random)
    ]
    assert shares[0] > shares[1] + 0.1
    assert grouped.worst_batch == random.worst_batch


@pytest.mark.parametrize(
    ("model", "attention"),
    [("gpt2-mini", "eager"), ("llama-mini", "sdpa"), ("llama-mini", "eager"), ("moe-mini", "sdpa")],
)
def test_a_packed_sample_is_not_seen_by_its_neighbour(
    texts: Callable[..., Workload], model: str, attention: str
) -> None:
    workload = texts(model)
    assert workload.collating["packing"] is None
    torch.manual_seed(0)
    made = build_model(workload, model_arguments={"attn_implementation": attention}).eval()
    made.config.use_cache = False
    samples = [{"input_ids": list(range(5, 5 + length))} for length in (4, 9, 6)]
    packed = {name: item for name, item in DataCollatorWithFlattening()(samples).items() if name != "labels"}
    with torch.no_grad():
        together = made(**packed).logits[0]
        apart = torch.cat([made(torch.tensor([sample["input_ids"]])).logits[0] for sample in samples])
    torch.testing.assert_close(together, apart, atol=1e-4, rtol=1e-4)


def test_what_cannot_be_packed_or_padded_says_why() -> None:
    for kind, task, said in (
        ("bert", "masked-lm", "causal language models only"),
        ("mamba", "causal-lm", "positions"),
        ("vit", "image-classification", "no padding"),
    ):
        outline = model_outline(AutoConfig.for_model(kind, num_hidden_layers=1), task)
        assert said in (collating(task, True, outline)["packing"] or "")
    same = collating("causal-lm", False, None)
    assert same.pop("attention_mask") is None
    assert set(same.values()) == {"all samples have the same length"}
    model = model_outline(AutoConfig.for_model("gpt2", n_layer=1), "causal-lm")
    assert "many lengths" in (collating("causal-lm", True, model)["attention_mask"] or "")


def test_a_callers_own_collator_pads_where_it_knows_how() -> None:
    pads = SimpleNamespace(pad_to_multiple_of=4)
    known, own = user_collating(pads, None)
    assert (known["pad_to_multiple_of"], own) == (None, 4)
    assert collated_as_asked(pads, {"pad_to_multiple_of": 16}) is pads
    assert pads.pad_to_multiple_of == 16
    assert user_collating(None, SimpleNamespace(pad=print))[0]["pad_to_multiple_of"] is None
    assert "no pad_to_multiple_of" in (user_collating(print, None)[0]["pad_to_multiple_of"] or "")
    assert "your own" in (user_collating(pads, None)[0]["packing"] or "")
    assert "your own" in (user_collating(pads, None)[0]["attention_mask"] or "")


def test_a_few_spread_steps_stand_for_all_of_a_sorted_order() -> None:
    lengths = list(range(1000, 0, -1))
    taken = list(SpreadSteps(range(1000), 10))
    assert sorted(taken) == list(range(1000))
    assert all(taken[at : at + 10] == list(range(taken[at], taken[at] + 10)) for at in range(0, 1000, 10))
    first = [lengths[place] for place in taken[:100]]
    assert abs(sum(first) / 100 - 500.5) < 25
    assert list(SpreadSteps(range(7), 3))[-1] == 6, "what is no whole step stays the last"


class Read(Numbers):
    """Notes which samples are read."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.places: list[int] = []

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        sample = super().__getitem__(place)
        self.places.append(place)
        return sample


class Epochs(TrainerCallback):
    """Counts the epochs that have begun."""

    begun = 0

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.begun += 1


def trained(trainer: Any, steps: int) -> int:
    """Train for n steps as a trial does: epochs that have begun."""
    epochs = Epochs()
    TrialControl(trainer, epochs, steps, trainer.args.gradient_accumulation_steps)
    trainer.train()
    return epochs.begun


class Labels(Trainer):
    """Counts the labels of its data, as classes are weighed, and keeps that loader which a class of one's own may make."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.labels = [int(sample["labels"]) for sample in self.train_dataset]

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(
            self.train_dataset, self.args.train_batch_size, collate_fn=self.data_collator
        )


def test_lengths_are_read_once_for_each_sample_however_many_steps_there_are(tmp_path: Path) -> None:
    """As many more reads are those of the samples trained on, and the two that transformers looks at beforehand."""
    data = Read(20)
    trainer = built(
        tmp_path, fields={"train_sampling_strategy": "group_by_length", "max_steps": 10}, train_dataset=data
    )
    spread_steps(trainer)
    repeat_batches(trainer, 11 * 2)
    trainer.get_train_dataloader()
    assert trained(trainer, 10) == 1, "no epoch ended"
    assert data.places[2:22] == list(range(20))
    assert len(data.places) <= 2 + 20 + 22 * 4


@pytest.mark.parametrize("samples", [23, 500])
def test_steps_are_whole_whatever_the_data_s_length_and_the_trainer_s_loader(samples: int, tmp_path: Path) -> None:
    data = Read(samples)
    trainer = built(tmp_path, Labels, fields={"max_steps": 100}, train_dataset=data)
    assert len(trainer.labels) == samples
    repeat_batches(trainer, 31 * 2)
    data.places.clear()
    assert trained(trainer, 30) == 1
    assert trainer.state.epoch == pytest.approx(30 / -(-samples // 8), rel=0.02), "of the user's data"
    trained_on = data.places[: 30 * 8]
    assert trained_on == [place % samples for place in range(30 * 8)], "each pass goes on where the one before ended"


def test_every_micro_batch_size_gets_the_same_samples_pass_after_pass(tmp_path: Path) -> None:
    seen = []
    for micro in (2, 4, 8):
        data = Read(23)
        sizes = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": 8 // micro, "max_steps": 9}
        trainer = built(tmp_path, fields=sizes, train_dataset=data)
        repeat_batches(trainer, 10 * 8 // micro)
        trained(trainer, 9)
        seen.append(data.places[:72])
    assert seen[0] == seen[1] == seen[2]
    assert [sorted(seen[0][at : at + 23]) for at in (0, 23, 46)] == [list(range(23))] * 3
    assert seen[0][:23] != seen[0][23:46], "each pass in an order of its own"


def test_a_sampler_of_batches_of_one_s_own_is_repeated_as_it_is_and_an_empty_one_ends() -> None:
    uneven = [[1, 2, 3], [4], [5, 6]]
    assert list(RepeatedBatches(uneven, 5)) == [*uneven, *uneven[:2]]
    assert list(RepeatedBatches([], 5)) == []


def test_a_stream_of_samples_begins_again_in_the_loader_and_ends_for_everyone_else(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
            return iter([Numbers()[place] for place in range(5)])

    trainer = built(tmp_path, fields={"max_steps": 6}, train_dataset=Stream())
    repeat_batches(trainer, 14)
    assert len(list(trainer.train_dataset)) == 5
    fetch, samples = trainer.get_batch_samples, []

    def fetching(*args: Any) -> Any:
        batches, items = fetch(*args)
        samples.append(sum(len(batch["labels"]) for batch in batches))
        return batches, items

    trainer.get_batch_samples = fetching
    assert trained(trainer, 6) == 1
    assert samples == [8] * 6
