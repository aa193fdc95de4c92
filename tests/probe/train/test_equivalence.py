"""Whether another micro-batch size, or other workers, would be another training: seen in the user's own loss and stream."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from transformers import Trainer, TrainingArguments

from autotune.core import Configuration, Environment, Measurement, Outcome
from autotune.probe.process.launcher import ProbeHost
from autotune.probe.train import equivalence
from autotune.probe.train.equivalence import Losses, are_shared, batch_norms, first_samples, look, rows_of, torch_loader
from autotune.space.settings import MICRO
from autotune.workload.data.sampling import repeat_batches
from tests.probe.probes import configuration, make_order, measured
from tests.trainers import bert

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def tokens(number: int, length: int = 12) -> torch.Tensor:
    return torch.randint(2, 64, (length,), generator=torch.Generator().manual_seed(number))


def text(number: int) -> dict[str, Any]:
    return {"input_ids": tokens(number), "labels": tokens(number)}


def labelled(number: int) -> dict[str, Any]:
    return {"input_ids": tokens(number), "labels": torch.tensor(number % 2)}


def varied(number: int) -> dict[str, Any]:
    return {name: value[: 2 + number % 10] for name, value in text(number).items()}


def image(number: int) -> dict[str, Any]:
    pixels = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(number))
    return {"pixel_values": pixels, "labels": torch.tensor(number % 3)}


class Rows(Dataset):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> Any:
        return self.make(number)


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    pad = {"labels": -100}
    return {
        name: torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=pad.get(name, 0))
        for name, values in columns.items()
    }


def masked(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Another three tenths of the tokens are learned each time."""
    batch = padded(rows)
    batch["labels"] = torch.where(torch.rand(batch["labels"].shape) < 0.3, batch["labels"], -100)
    return batch


def gpt2() -> Any:
    config = {"vocab_size": 64, "n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 2}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def masked_bert() -> Any:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES))


def mixtral() -> Any:
    experts = {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.02}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SIZES, **experts, num_key_value_heads=2))


def t5() -> Any:
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))


def vit() -> Any:
    sizes = {**SIZES, "image_size": 32, "patch_size": 8, "num_labels": 3}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes))


def resnet() -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes))


class Averaged(Trainer):
    """Of a compute_loss that takes no notice of the number of items, and a Trainer that is told so."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return functional.cross_entropy(model(inputs["input_ids"]).logits, inputs["labels"])


class Ignoring(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        logits = model(inputs["input_ids"]).logits
        return functional.cross_entropy(logits, inputs["labels"], weight=torch.tensor([0.1, 5.0]))


class Summed(Trainer):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return functional.cross_entropy(model(inputs["input_ids"]).logits, inputs["labels"], reduction="sum")


class AveragedSum(Averaged):
    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return len(inputs["labels"]) * super().compute_loss(model, inputs)


class Embedding(Trainer):
    def embedded(self, model: Any, inputs: Any) -> Any:
        return functional.normalize(model.bert(inputs["input_ids"]).last_hidden_state.mean(1), dim=-1)


class Contrastive(Embedding):
    """Each row's own pair is the right one among those of all rows."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        rows = self.embedded(model, inputs)
        return functional.cross_entropy(20 * rows @ rows.roll(1, 1).T, torch.arange(len(rows)))


class Hardest(Embedding):
    """The farthest row of the same label, and the nearest of another."""

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        rows, labels = self.embedded(model, inputs), inputs["labels"]
        distances, same = 1 - rows @ rows.T, labels[:, None] == labels[None]
        return functional.relu((distances * same).amax(1) - (distances + 9 * same).amin(1) + 0.2).mean()


class Noisy(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss: Any = super().compute_loss(*args, **kwargs)
        return loss * (1 + torch.rand(()))


def order_of(micro_batch_size: int, **values: Any) -> Any:
    configuration = Configuration.exact(16, micro_batch_size, values)
    return SimpleNamespace(configuration=configuration, ranks=1)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Any]:
    def make(kind: Any, model: Any, row: Any, collator: Any = None, **fields: Any) -> Any:
        torch.manual_seed(0)
        known = {"per_device_train_batch_size": 4, "use_cpu": True, "report_to": "none"}
        arguments = TrainingArguments(output_dir=str(tmp_path), **{**known, **fields})
        more = {"compute_loss_func": kind} if not isinstance(kind, type) else {}
        kind = kind if isinstance(kind, type) else Trainer
        return kind(model(), arguments, train_dataset=Rows(row), data_collator=collator, **more)

    return make


def item_mean(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    return functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


# A micro-batch of all rows and of some ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "model", "row", "collator", "fields"),
    [
        (Trainer, gpt2, varied, padded, {"label_smoothing_factor": 0.1, "bf16": True}),
        (Trainer, masked_bert, varied, masked, {}),
        (Trainer, mixtral, text, None, {}),
        (Trainer, resnet, image, None, {}),
        (Ignoring, bert, labelled, None, {}),
        (Noisy, bert, labelled, None, {}),
    ],
)
def test_a_mean_does_not_depend_on_the_micro_batch(
    made: Callable[..., Any], kind: Any, model: Any, row: Any, collator: Any, fields: dict[str, Any]
) -> None:
    trainer = made(kind, model, row, collator, **fields)
    loader = torch_loader(trainer)
    assert Losses(trainer, 60).by_size(loader, rows_of(loader, 16)) is None


@pytest.mark.parametrize("rows", [8, 32])
@pytest.mark.parametrize("kind", [Contrastive, Hardest])
def test_a_loss_of_a_row_and_its_companions_depends_on_the_micro_batch(
    made: Callable[..., Any], kind: type, rows: int
) -> None:
    trainer = made(kind, bert, labelled)
    loader = torch_loader(trainer)
    seen = Losses(trainer, 60).by_size(loader, rows_of(loader, rows))
    assert seen
    assert seen.of_all > 1.05 * seen.of_parts
    assert not seen.is_sum


def test_a_sum_of_rows_grows_with_them(made: Callable[..., Any]) -> None:
    trainer = made(Summed, bert, labelled)
    loader = torch_loader(trainer)
    seen = Losses(trainer, 60).by_size(loader, rows_of(loader, 8))
    assert seen
    assert seen.of_all == pytest.approx(4 * seen.of_parts)
    assert seen.is_sum


class OwnNorm(torch.nn.Module):
    def forward(self, values: Any) -> Any:
        return (values - values.mean(0)) / values.std(0) if self.training else values


def normed_vit() -> Any:
    model = vit()
    model.vit.layernorm = OwnNorm()
    return model


@pytest.mark.parametrize(
    ("kind", "model", "row", "kinds"),
    [
        (Trainer, gpt2, text, []),
        (Trainer, resnet, image, ["batch_norm", "gradients"]),
        (Trainer, bert, labelled, ["gradients"]),
        (Averaged, bert, labelled, []),
        (Trainer, normed_vit, image, ["mixed"]),
        (Contrastive, bert, labelled, ["batch", "gradients"]),
        (AveragedSum, bert, labelled, ["gradients"]),
    ],
)
def test_settings_that_would_make_another_training_are_kept(
    made: Callable[..., Any], kind: Any, model: Any, row: Any, kinds: list[str]
) -> None:
    kept = look(order_of(4), made(kind, model, row), 60)
    assert [each.kind.value for each in kept if each.setting == MICRO] == kinds
    assert {each.setting for each in kept} == ({MICRO} if kinds else set())


def test_the_first_probe_that_trains_looks_and_the_next_ones_do_not(
    own_host: ProbeHost, tmp_path: Path, environment: Environment
) -> None:
    def trained(**fields: Any) -> Measurement:
        order = make_order(tmp_path, environment, "compare the rows", asked=configuration(16), **fields)
        return measured(own_host, order)

    first, later = trained(speed_to_reach=None), trained()
    assert (first.kept[0].kind.value, first.kept[0].setting, first.kept[0].numbers["rows"]) == ("batch", MICRO, 16)
    assert (later.outcome, later.kept) == (Outcome.COMPLETED, ())


# A step of one micro-batch and of several -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "model", "row", "growth"),
    [
        (Trainer, gpt2, text, 1),
        (Trainer, bert, labelled, 8),
        (Trainer, t5, text, 8),
        (Averaged, bert, labelled, 1),
        (Ignoring, bert, labelled, 8),
        (item_mean, bert, labelled, 1),
    ],
)
def test_gradients_are_averaged_over_micro_steps_or_added_up(
    made: Callable[..., Any], kind: Any, model: Any, row: Any, growth: int
) -> None:
    trainer = made(kind, model, row)
    batch = next(iter(torch_loader(trainer)))
    assert Losses(trainer, 60).growth(batch, 8) == pytest.approx(growth)


def test_the_loss_for_balanced_experts_alone_is_not_called_added_up(made: Callable[..., Any]) -> None:
    trainer = made(Trainer, mixtral, text)
    growth = Losses(trainer, 60).growth(next(iter(torch_loader(trainer))), 8)
    assert 1.05 < growth < 1 + equivalence.SAME_GRADIENT


@pytest.mark.parametrize(
    ("kind", "is_free"), [(torch.optim.AdamW, True), (torch.optim.SGD, False), (transformers.Adafactor, True)]
)
def test_the_scale_of_gradients_matters_to_some_optimizers(made: Callable[..., Any], kind: type, is_free: bool) -> None:
    trainer = made(Trainer, bert, labelled)
    optimizer = trainer.accelerator.prepare(kind(trainer.model.parameters()))
    assert equivalence.is_scale_free(optimizer) is is_free


# Statistics of a micro-batch --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "training", "counted"),
    [
        (torch.nn.SyncBatchNorm(4), True, 1),
        (torch.nn.BatchNorm2d(4), False, 0),
        (torch.nn.BatchNorm2d(4, track_running_stats=False), False, 1),
        (torch.nn.GroupNorm(2, 4), True, 0),
        (torch.nn.InstanceNorm2d(4), True, 0),
    ],
)
def test_only_norms_that_normalise_by_the_micro_batch_are_counted(layer: Any, training: bool, counted: int) -> None:
    assert batch_norms(torch.nn.Sequential(layer).train(training)) == counted


# Streams ----------------------------------------------------------------------------------------------------------


class InOrder(IterableDataset):
    begin = 0

    def __iter__(self) -> Iterator[Any]:
        return map(text, range(self.begin, 160))


class Drawn(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield text(int(torch.randint(0, 10**6, ())))


class AllAlike(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return (text(3) for _ in range(160))


class OneFile(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        return map(text, range(0 if worker and worker.id else 160))


def sharing(_: int) -> None:
    worker = get_worker_info()
    worker.dataset.begin = 80 * worker.id


@pytest.mark.parametrize(
    ("stream", "init", "shared"),
    [
        (InOrder(), None, False),
        (InOrder(), sharing, True),
        (Drawn(), None, True),
        (AllAlike(), None, None),
        (OneFile(), None, None),
    ],
)
def test_two_workers_share_a_stream_or_each_yields_all_of_it(
    made: Callable[..., Any], stream: Any, init: Any, shared: bool | None
) -> None:
    trainer = made(Trainer, gpt2, text)
    trainer.get_train_dataloader = lambda: DataLoader(stream, batch_size=4, worker_init_fn=init)
    repeat_batches(trainer, 8)
    samples = first_samples(torch_loader(trainer), 30)
    assert are_shared(samples) is shared
    assert bool(samples[1]) is not isinstance(stream, OneFile)


class Unreadable(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        if get_worker_info():
            raise OSError("opened already")
        return map(text, range(160))


@pytest.mark.parametrize(
    ("stream", "own", "kind", "most"),
    [
        (InOrder(), 0, "repeated", 1),
        (OneFile(), 0, "shards", 1),
        (Unreadable(), 0, "unseen", None),
    ],
)
def test_workers_are_kept_where_they_would_change_the_data(
    made: Callable[..., Any], stream: Any, own: int, kind: str, most: int | None
) -> None:
    trainer = made(Trainer, gpt2, text)
    trainer.get_train_dataloader = lambda: DataLoader(stream, batch_size=4)
    (kept,) = look(order_of(4, workers=own), trainer, 60)
    assert (kept.setting, kept.kind.value, kept.numbers.get("most")) == ("workers", kind, most)
    assert kind != "unseen" or "OSError: opened already" in kept.text
