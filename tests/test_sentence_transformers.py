"""`tune` and `autotune run` with the Trainers of sentence-transformers and SetFit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.core.errors import InvalidRequest
from tests.commands.run.programs import autotune_run, study
from tests.hurry import hurry

datasets = pytest.importorskip("datasets")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

WORDS = [str(number) for number in range(60)]


def text(number: int) -> str:
    return " ".join(WORDS[(7 * number + place) % 60] for place in range(3 + number % 9))


def pairs(rows: int) -> Any:
    return datasets.Dataset.from_dict(
        {"anchor": list(map(text, range(rows))), "positive": list(map(text, range(rows)))}
    )


def scored(rows: int) -> Any:
    scores = [(number % 10) / 10 for number in range(rows)]
    texts = list(map(text, range(rows)))
    return datasets.Dataset.from_dict({"sentence1": texts, "sentence2": texts[::-1], "score": scores})


def tiny(folder: Path, kind: Any = None, **fields: Any) -> str:
    """Folder of a BERT of one layer and its tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **names).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes, **fields)
    (kind or BertModel)(config).save_pretrained(folder)
    return str(folder)


def embedder(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(tiny(folder / "model"), max_seq_length=16)
    return SentenceTransformer(modules=[transformer, models.Pooling(16)], device="cpu")


def arguments(folder: Path, kind: str = "SentenceTransformerTrainingArguments", **more: Any) -> Any:
    import sentence_transformers

    known = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "report_to": "none", "use_cpu": True}
    known |= {"bf16": False, "save_strategy": "no", "max_steps": 100}
    return getattr(sentence_transformers, kind)(output_dir=str(folder / "out"), **{**known, **more})


def one(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, losses

    model = embedder(folder)
    return SentenceTransformerTrainer(model, arguments(folder), scored(40), loss=losses.CosineSimilarityLoss(model))


def several(folder: Path) -> Any:
    """Two datasets with a loss each."""
    from sentence_transformers import SentenceTransformerTrainer, losses

    model = embedder(folder)
    of_pairs, of_scores = losses.MultipleNegativesRankingLoss(model), losses.CosineSimilarityLoss(model)
    data, loss = {"a": pairs(21), "b": scored(21)}, {"a": of_pairs, "b": of_scores}
    return SentenceTransformerTrainer(model, arguments(folder), data, loss=loss)


def without_duplicates(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, losses

    model = embedder(folder)
    args = arguments(folder, batch_sampler="no_duplicates")
    return SentenceTransformerTrainer(model, args, pairs(40), loss=losses.MultipleNegativesRankingLoss(model))


def cross_encoder(folder: Path) -> Any:
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, losses
    from transformers import BertForSequenceClassification

    name = tiny(folder / "model", BertForSequenceClassification, num_labels=1)
    model = CrossEncoder(name, num_labels=1, max_length=16, device="cpu")
    args = arguments(folder, "CrossEncoderTrainingArguments")
    return CrossEncoderTrainer(model, args, scored(40), loss=losses.BinaryCrossEntropyLoss(model))


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [one, several, without_duplicates, cross_encoder])
def test_it_is_searched_and_trains_with_its_answer(
    kind: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    hurry(monkeypatch)
    trainer = kind(tmp_path)
    only = {"micro_batch_size": [2, 4], "checkpointing": ["none"], "precision": ["fp32"]}
    result = autotune.tune(
        trainer, only=only, n_trials=2, space="quick", no_history=True, output_dir=str(tmp_path / "reports")
    )
    assert [trial.measurement.reason for trial in result.trials if trial.measurement.outcome != "completed"] == []
    assert result.workload.samples == (42 if kind is several else 40)
    assert all(not parameter.is_meta for parameter in trainer.model.parameters())
    losses = trainer.loss.values() if isinstance(trainer.loss, dict) else [trainer.loss]
    assert all(loss.model is trainer.model for loss in losses), "the user's losses still have the user's model"
    made = result.apply(trainer)
    made.args.max_steps = 2
    assert made.train().global_step == 2


SETFIT = """
import datasets, sentence_transformers, setfit, sklearn.linear_model
from sentence_transformers import models

modules = [models.Transformer("model", max_seq_length=16), models.Pooling(16)]
model = setfit.SetFitModel(
    model_body=sentence_transformers.SentenceTransformer(modules=modules, device="cpu"),
    model_head=sklearn.linear_model.LogisticRegression(),
)
rows = datasets.Dataset.from_dict({"text": [str(i) for i in range(32)], "label": [i % 2 for i in range(32)]})
args = setfit.TrainingArguments("out", batch_size=8, max_steps=40, report_to="none", save_strategy="no")
trainer = setfit.Trainer(model, args, train_dataset=rows)
trainer.train()
print("trained", model.predict(["1"]))
"""


@pytest.mark.nightly
def test_the_embeddings_that_setfit_trains_are_searched_by_its_command(tmp_path: Path) -> None:
    pytest.importorskip("setfit")
    tiny(tmp_path / "model")
    (tmp_path / "train.py").write_text(SETFIT)
    only = ("--only", "precision=fp32", "--only", "checkpointing=none", "--n-trials", "1", "--no-history")
    ended = autotune_run(tmp_path, *only, "--train", flags=())
    assert ended.returncode == 0, ended.stderr
    assert "trained" in ended.stdout
    assert study(tmp_path).best.measurement.outcome == "completed"


def test_what_is_no_trainer_of_transformers_is_named_in_a_line() -> None:
    with pytest.raises(InvalidRequest, match="object is no transformers Trainer") as caught:
        autotune.tune(object())
    assert "autotune run" in str(caught.value)
    assert "\n" not in str(caught.value)
