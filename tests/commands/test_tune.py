"""`tune`, for real: the user's own Trainer is what probes train, and what the answer goes back into."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    ByT5Tokenizer,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations import MLflowCallback, TensorBoardCallback

import autotune
from autotune.commands import tune
from autotune.commands.save import weights_text
from autotune.core.errors import InvalidRequest, LossWarning
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.core.warning import ResultWarning, WarningKind
from autotune.probe.process.guard import MEANS, why_unguarded
from autotune.space.build import build_space
from autotune.study.identity import study_identity
from autotune.workload import extract
from autotune.workload.model.pickling import Payload
from autotune.workload.model.sent_model import CONFIG, ITSELF
from autotune.workload.model.user_objects import UserObjects, user_workload
from autotune.workload.references import of_library
from tests import makers
from tests.digests import digest
from tests.hurry import hurry
from tests.trainers import CHECKPOINTING, Counting, Keeping, Keyed, Numb, Numbers, Scaled, bert, built

pytestmark = pytest.mark.filterwarnings("ignore:Losses not compared:autotune.core.errors.LossWarning")
"""What a short end leaves out."""


class Ending(TrainerCallback):
    """Ends a training after two steps; fails after the third."""

    def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
        control.should_training_stop = state.global_step >= 2
        1 / (3 - state.global_step)


FEW = {"n_trials": 2, "space": "quick", "no_history": True}


@pytest.fixture(autouse=True)
def a_short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def test_the_user_s_own_trainer_is_searched_for_and_gets_its_answer(tmp_path: Path) -> None:
    model, keeping = bert(), Keeping(tmp_path / "mine")
    keeping.fill(model)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    groups = [{"params": model.bert.parameters(), "lr": 1e-5}, {"params": model.classifier.parameters(), "lr": 1e-2}]
    optimizer = torch.optim.SGD(groups, momentum=0.9)
    callbacks = [Counting(), keeping, EarlyStoppingCallback(), Ending()]
    fields = {"metric_for_best_model": "loss", "eval_strategy": "steps", "eval_steps": 100}  # early stopping wants them
    parts = {"optimizers": (optimizer, None), "callbacks": callbacks, "eval_dataset": Numbers(8)}
    trainer = built(tmp_path, Scaled, model, fields, scale=2.0, **parts)
    only = {"optimizer": ["own", "adamw_torch_fused"], "checkpointing": ["none"]}
    before, variables = (digest(tmp_path / "mine"), Path.cwd()), dict(os.environ)
    result = autotune.tune(trainer, only=only, output_dir=str(tmp_path / "reports"), **FEW)

    assert (digest(tmp_path / "mine"), Path.cwd()) == before
    assert variables.items() <= os.environ.items()  # libraries add some of their own
    assert result.request.global_batch_size == 8
    assert (result.baseline.configuration.micro_batch_size, result.request.device) == (4, "cpu")
    for trial in result.trials:
        assert trial.measurement.outcome == "completed", trial.measurement.reason
        assert trial.measurement.settings["optimizer"] == "own"
    notes = " ".join(map(str, result.notes))
    assert "your callbacks run in every probe: Counting, Keeping, Ending, Told" in notes
    assert "failed in probes, and left out of them: Ending (ZeroDivisionError: division by zero)" in notes
    for trial in result.trials:
        assert [*trial.measurement.left_out] == ["Ending"]
    assert "EarlyStoppingCallback (it needs evaluations)" in notes
    logs = [path.read_text() for path in (tmp_path / "reports").glob("*/probes/*/log.txt")]
    assert sum(log.count("counted") for log in logs) > 3 * len(result.trials)
    assert why_unguarded() or all("\nkept\n" in log for log in logs)
    assert callbacks[0].steps == 0  # which are none of the user's own training
    assert all(torch.equal(item, before) for item, before in zip(model.parameters(), weights, strict=True))
    assert not torch.cuda.is_initialized()

    made = result.apply(trainer)
    made.args.max_steps = 2
    made.train()
    assert getattr(made.optimizer, "optimizer", made.optimizer) is optimizer
    assert callbacks[0].steps == 2
    size = made.args.per_device_train_batch_size * made.args.gradient_accumulation_steps
    assert (size, made.args.per_device_train_batch_size) == (8, result.best.configuration.micro_batch_size)


@pytest.mark.nightly
def test_where_the_user_s_folder_cannot_have_a_layer_it_is_read_only_and_that_is_said_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEANS, "landlock python")
    keeping = Keeping(tmp_path / "mine")
    keeping.fill(bert())
    before, said = digest(tmp_path / "mine"), list[Any]()
    options = {**FEW, "n_trials": 1}
    autotune.tune(
        built(tmp_path, callbacks=[keeping]), watch=said.append, output_dir=str(tmp_path / "reports"), **options
    )
    assert digest(tmp_path / "mine") == before
    messages = [(len(progress.trials), progress.message) for progress in said]
    assert any("your files in trials:" in message and not trials for trials, message in messages)
    logs = [path.read_text() for path in (tmp_path / "reports").glob("*/probes/*/log.txt")]
    assert all("not kept: autotune: a trial writes nothing of yours" in log for log in logs)


@pytest.mark.nightly
def test_what_learns_nothing_is_fastest_and_wins_only_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    trainer = built(tmp_path, Numb, fields={"learning_rate": 1e-2}, train_dataset=Numbers(classes=1))
    only = {"optimizer": ["adamw_torch"], "checkpointing": ["none"], "micro_batch_size": [4], "workers": [0]}
    options = {**FEW, "only": only, "n_trials": 3, "output_dir": str(tmp_path / "reports")}  # all of them
    result = autotune.tune(trainer, **options)
    assert result.best.number == 0
    (disqualified_reason, reason), *_ = result.disqualified
    assert disqualified_reason.configuration.values["precision"] == "bf16"
    assert "above fp32's" in reason
    allowed = autotune.tune(trainer, allow_loss_difference=True, **options)
    assert allowed.best.configuration == disqualified_reason.configuration
    assert any("fp32" in warning.text for warning in allowed.warnings)
    for hand_out in (allowed.training_arguments, lambda: allowed.apply(trainer)):
        with pytest.warns(LossWarning, match="Losses differ from fp32's"):
            hand_out()


@pytest.mark.nightly
def test_a_model_of_one_s_own_is_sent_and_another_batch_may_be_asked_for(tmp_path: Path) -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Embedding(64, 2)

        def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": torch.nn.functional.cross_entropy(self.inner(input_ids).mean(dim=1), labels)}

    only = {"micro_batch_size": [4, 12], "checkpointing": ["none"], "precision": ["fp32"]}
    trainer = built(tmp_path, model=Own(), train_dataset=Numbers(40))
    result = autotune.tune(trainer, global_batch_size=12, only=only, output_dir=str(tmp_path / "reports"), **FEW)
    assert Note(NoteKind.SENT, detail="its class is not one of transformers") in result.notes
    assert {trial.configuration.global_batch_size for trial in result.trials} == {12}
    assert result.baseline.configuration.micro_batch_size == 4
    assert result.workload.architecture == "Own"


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
@pytest.mark.filterwarnings("ignore:This sequence already has:UserWarning")
def test_trl_s_sft_trainer_is_what_is_measured(tmp_path: Path) -> None:
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from transformers import ByT5Tokenizer, Qwen2Config, Qwen2ForCausalLM

    texts = [f"the {number}th of many paragraphs, {'and longer ' * (number % 5)}" for number in range(80)]
    config = Qwen2Config(
        vocab_size=384,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
    )
    args = trl.SFTConfig(
        output_dir=str(tmp_path),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        max_length=40,
        packing=True,
        dataset_text_field="words",
        per_device_train_batch_size=4,
        report_to="none",
        save_strategy="no",
        learning_rate=1e-3,
    )
    data = datasets.Dataset.from_dict({"words": texts})
    trainer = trl.SFTTrainer(
        model=Qwen2ForCausalLM(config), args=args, train_dataset=data, processing_class=ByT5Tokenizer()
    )
    only = {"micro_batch_size": [2, 4], "checkpointing": ["none"]}
    result = autotune.tune(trainer, only=only, output_dir=str(tmp_path / "reports"), **FEW)
    for trial in result.trials:
        assert trial.measurement.outcome == "completed", trial.measurement.reason
    assert result.baseline.configuration.values["precision"] == "fp32"  # though SFTConfig's default is bf16
    log = (result.folder / "probes" / "0000" / "log.txt").read_text()
    assert not re.search("Tokenizing|Packing|Truncating", log)

    made = result.apply(trainer)
    assert type(made) is trl.SFTTrainer
    assert type(made.args) is trl.SFTConfig
    assert (made.args.max_length, made.args.packing, made.args.dataset_kwargs) == (40, True, None)
    assert made.args.learning_rate == 1e-3
    assert len(made.train_dataset) == len(trainer.train_dataset)
    assert made.args.per_device_train_batch_size * made.args.gradient_accumulation_steps == 4
    told = made.args.to_dict()
    made.args.max_steps = 2
    assert made.train().global_step == 2
    assert made.evaluate(data.select(range(4)))["eval_loss"] > 0  # data that is given later is prepared as before
    # Last: whoever builds arguments resets accelerate's state, and with it that of a Trainer which is there already.
    assert result.training_arguments().to_dict() == told
    assert result.training_arguments().output_dir == str(tmp_path)


class Weighed(Trainer):
    """Counts the labels of its data, as classes are weighed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.labels = [int(sample["labels"]) for sample in self.train_dataset]
        assert len(self.labels) == 24


@pytest.mark.nightly
def test_a_model_that_forgets_by_hand_and_data_grouped_by_length_are_searched_to_the_end(tmp_path: Path) -> None:
    """The baseline is what the real run is; `none` is switched off on the model, in probes and in the answer's Trainer."""
    model = bert()
    getattr(model, f"{CHECKPOINTING}_enable")()
    grouped = {"train_sampling_strategy": "group_by_length"}
    trainer = built(tmp_path, Weighed, model, grouped, train_dataset=Numbers(24))
    only = {"checkpointing": ["none"], "micro_batch_size": [8], "precision": ["fp32"]}
    result = autotune.tune(trainer, only=only, output_dir=str(tmp_path / "reports"), **FEW)
    baseline = result.baseline
    assert baseline.configuration.values["checkpointing"] == baseline.measurement.settings["checkpointing"] == "full"
    assert {trial.measurement.outcome for trial in result.trials} == {"completed"}
    assert {trial.measurement.settings["checkpointing"] for trial in result.trials[1:]} == {"none"}
    if result.best is not baseline:
        assert not getattr(result.apply(trainer).model, f"is_{CHECKPOINTING}")
    else:
        assert getattr(result.apply(trainer).model, f"is_{CHECKPOINTING}")


def test_what_cannot_be_sent_is_said_in_one_line_and_nothing_is_started(tmp_path: Path) -> None:
    with (tmp_path / "open").open("w") as unsendable:

        def collate(samples: list[Any]) -> Any:
            return unsendable and samples

        with pytest.raises(
            InvalidRequest,
            match="The data_collator cannot be sent to another process: it holds an open file",
        ) as caught:
            autotune.tune(built(tmp_path, data_collator=collate), output_dir=str(tmp_path / "reports"))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "reports").exists()


class Rounds(torch.optim.Optimizer):
    """An optimizer with an argument that is no setting of its groups."""

    def __init__(self, params: Any, rounds: int = 1) -> None:
        super().__init__(params, {"lr": 1e-3})
        self.rounds = rounds

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        time.sleep(0.01 * self.rounds)
        for weight in self.param_groups[0]["params"]:
            weight.sub_(weight.grad.sign(), alpha=1e-3)


@pytest.mark.nightly
def test_a_function_builds_the_trainer_of_each_probe_and_of_the_answer(tmp_path: Path) -> None:
    def build(args: Any) -> Any:
        model = bert()
        trainer = Trainer(
            model, args, train_dataset=Numbers(), optimizers=(Rounds(model.parameters(), rounds=20), None)
        )
        before = trainer.compute_loss
        trainer.compute_loss = lambda *args, **kwargs: 3 * before(*args, **kwargs)
        return trainer

    args = built(tmp_path).args
    only = {"micro_batch_size": [4, 8], "precision": ["fp32"], "padding": ["none", "8"]}
    result = autotune.tune(build, args, only=only, output_dir=str(tmp_path / "reports"), **FEW)
    for trial in result.trials:
        assert trial.measurement.outcome == "completed", trial.measurement.reason
        assert trial.samples_per_second is not None
        assert trial.samples_per_second.value <= 8 / 0.2, "each step takes 20 rounds"
    assert (result.workload.built, result.workload.own_optimizer) == (True, "Rounds")
    assert weights_text(result.workload) == "weights as your build function makes them"
    made = result.arguments(args)
    assert made.per_device_train_batch_size == result.best.configuration.micro_batch_size
    assert made.per_device_train_batch_size * made.gradient_accumulation_steps == 8
    made.max_steps = 2
    assert build(made).train().global_step == 2


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda args: None, "returns a NoneType. Let it return a transformers Trainer"),
        (lambda args: built(Path("elsewhere")), "whose output_dir is 'elsewhere', and args says"),
        (lambda args: Trainer(bert(), args, train_dataset=Numbers()).train(), r"calls train\(\)"),
        (lambda args: args.nothing, r"build\(args\) raises AttributeError: .*'nothing'"),
        (lambda args: Trainer(bert(), args), "has no train_dataset"),
    ],
)
def test_a_function_that_builds_no_trainer_of_its_arguments_is_refused_in_one_line(
    build: Any, text: str, asked: "Asked", tmp_path: Path
) -> None:
    autotune.tune(build, built(tmp_path).args)
    with pytest.raises(InvalidRequest, match=text) as caught:
        user_workload(tuning_request("mine", 8, device="cpu"), asked[0][0].pickled)
    assert "\n" not in str(caught.value)


def test_what_is_neither_a_trainer_nor_a_function_with_arguments_is_refused(tmp_path: Path) -> None:
    trainer = built(tmp_path)
    for given in ((bert,), (trainer, trainer.args), (bert(),), (bert, bert())):
        with pytest.raises(InvalidRequest, match=r"autotune.tune\(build, args\)"):
            autotune.tune(*given)


def test_a_function_whose_library_was_patched_is_refused(
    asked: "Asked", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Trainer.training_step
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", lambda self, *args: before(self, *args))
        autotune.tune(lambda args: Trainer(bert(), args, train_dataset=Numbers()), built(tmp_path).args)
    with pytest.raises(InvalidRequest, match=r"Trainer\.training_step was replaced in your process"):
        user_workload(tuning_request("mine", 8, device="cpu"), asked[0][0].pickled)


def test_what_a_built_trainer_s_arguments_do_not_say_is_not_searched(asked: "Asked", tmp_path: Path) -> None:
    def build(args: Any) -> Any:
        model = bert()
        getattr(model, f"{CHECKPOINTING}_enable")()
        return Trainer(model, args, train_dataset=Numbers(), data_collator=DataCollatorWithPadding(ByT5Tokenizer()))

    autotune.tune(build, built(tmp_path).args)
    request = tuning_request(
        "mine", 8, device="cpu", only={"padding": ["none", "8"], "checkpointing": ["none", "full"]}
    )
    workload = user_workload(request, asked[0][0].pickled)
    space = build_space(request, makers.cpu(), workload, {})
    assert (space.values["padding"], space.values["checkpointing"]) == (("none",), ("full",))
    assert {(ruled_out.setting, ruled_out.value) for ruled_out in space.ruled_out} >= {
        ("padding", "8"),
        ("checkpointing", "none"),
    }


def test_a_search_of_another_script_has_another_folder(asked: "Asked", tmp_path: Path, monkeypatch: Any) -> None:
    names = []
    for file in ("train.py", "other/Fine tune.py", "package/__main__.py", pytest.__file__):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / file), raising=False)
        of_library.cache_clear()
        autotune.tune(built(tmp_path))
        names.append(asked[-1][1].get("study_name"))
    of_library.cache_clear()
    of_model = "BertForSequenceClassification-gb8-cpu"
    assert names == [f"train-{of_model}", f"Fine-tune-{of_model}", f"package-{of_model}", None]


# What is searched for, without the search -----------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Payload, dict[str, Any]]]:
    """(what `tune` sends, options) of each search that it would begin."""
    calls: list[tuple[Payload, dict[str, Any]]] = []
    monkeypatch.setattr(tune, "search", lambda brought, size, **options: calls.append((brought, options)))
    return calls


Asked = list[tuple[Payload, dict[str, Any]]]


def test_states_of_an_optimizer_that_the_trainer_made_leave_the_device_too(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Any] = []
    held = ResultWarning(WarningKind.HELD_MEMORY, {"bytes": 2**30})

    @contextlib.contextmanager
    def off_device(model: Any, optimizer: Any, device: str) -> Iterator[ResultWarning]:
        moved.extend((optimizer, device))
        yield held

    monkeypatch.setattr(tune, "off_device", off_device)
    trainer = built(tmp_path, fields={"max_steps": 1})
    trainer.train()
    autotune.tune(trainer)
    assert moved[0].state
    assert isinstance(moved[0], torch.optim.AdamW)
    assert moved[1] == asked[0][1]["device"] == "cpu"
    assert asked[0][0].warnings == (held,)


def test_the_user_s_arguments_are_kept_as_they_were_then(asked: Asked, tmp_path: Path) -> None:
    trainer = built(tmp_path, fields={"run_name": "before", "hub_token": "hf_secret"})
    autotune.tune(trainer)
    trainer.args.run_name = "after"
    kept = asked[0][0].user_arguments
    assert (type(kept), kept.run_name, kept.output_dir) == (TrainingArguments, "before", str(tmp_path))
    assert "hf_secret" not in repr(asked)


def test_a_model_that_was_trained_in_bf16_is_sent_without_its_autocast_and_keeps_it(
    asked: Asked, tmp_path: Path
) -> None:
    class Own(type(bert())):  # type: ignore[misc]
        pass

    trainer = built(tmp_path, model=Own(bert().config), fields={"bf16": True, "max_steps": 1})
    trainer.train()
    forward = trainer.model.forward
    autotune.tune(trainer)
    assert trainer.model.forward == forward
    assert trainer.model._original_forward.__func__ is Own.forward
    arrived = UserObjects.opened(asked[0][0].pickled).model()
    assert type(arrived).__name__ == "Own"
    assert not {"forward", "_original_forward", "_is_accelerate_prepared"} & vars(arrived).keys()


def test_a_reference_model_that_was_prepared_in_bf16_is_sent_without_its_autocast_and_keeps_it(
    asked: Asked, tmp_path: Path
) -> None:
    class WithReference(Trainer):  # type: ignore[misc]
        def __init__(self, *args: Any, ref_model: Any = None, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.ref_model = self.accelerator.prepare_model(ref_model, evaluation_mode=True)

    trainer = built(tmp_path, kind=WithReference, fields={"bf16": True}, ref_model=bert())
    forward = trainer.ref_model.forward
    autotune.tune(trainer)
    assert trainer.ref_model.forward == forward
    arrived = UserObjects.opened(asked[0][0].pickled).trainer_arguments["ref_model"]
    assert not {"forward", "_original_forward", "_is_accelerate_prepared"} & vars(arrived).keys()


def test_weights_that_are_random_are_told_and_those_of_a_model_that_is_sent_are_not(
    asked: Asked, tmp_path: Path
) -> None:
    for model, made_by, words in (
        (bert(), CONFIG, "random weights"),
        (torch.nn.Sequential(bert()), ITSELF, "the weights of the model as it was sent"),
    ):
        autotune.tune(built(tmp_path, model=model))
        of = user_workload(tuning_request("mine", 8), asked[-1][0].pickled)
        assert of.source == made_by
        assert weights_text(of) == words
    told = [Note(NoteKind.WITHOUT_WEIGHTS) in brought.notes for brought, _ in asked]
    assert told == [True, False]


def test_trackers_and_what_needs_evaluations_stay_out_of_probes(asked: Asked, tmp_path: Path) -> None:
    class Quieter(TensorBoardCallback):
        pass

    class Patient(EarlyStoppingCallback):
        pass

    class Evaluating(TrainerCallback):
        def on_step_end(self, *_: Any, model: Any = None, **__: Any) -> None:
            model.evaluate()

    mine = [MLflowCallback(), Quieter(), Patient(), Counting(), Evaluating()]
    trainer = built(tmp_path, callbacks=mine)
    autotune.tune(trainer)
    (left,) = [note for note in asked[0][0].notes if note.kind is NoteKind.CALLBACKS_LEFT_OUT]
    assert left.detail.count("(it would log every probe as a run)") == 2
    assert "Patient (it needs evaluations), Evaluating (it evaluates)" in left.detail
    assert [type(callback).__name__ for callback in UserObjects.opened(asked[0][0].pickled).callbacks] == ["Counting"]
    assert extract.user_callbacks(trainer) == mine, "a Trainer with the answer still has them"


def test_none_that_was_given_in_the_place_of_a_default_is_what_probes_get(asked: Asked, tmp_path: Path) -> None:
    autotune.tune(built(tmp_path, Scaled, scale=None))
    parts = UserObjects.opened(asked[0][0].pickled).parts()
    assert parts["scale"] is None
    assert "processing_class" not in parts, "the Trainer that had none is given none"


def test_values_of_arguments_of_one_s_own_tell_studies_apart_and_are_written_nowhere(
    asked: Asked, tmp_path: Path
) -> None:
    for key in ("secret-1", "secret-1", "secret-2"):
        args = Keyed(str(tmp_path), use_cpu=True, report_to="none", api_key=key)
        autotune.tune(Trainer(model=bert(), args=args, train_dataset=Numbers()))
    first, again, other = (user_workload(tuning_request("mine", 8), brought.pickled) for brought, _ in asked)
    assert first.own_parts == again.own_parts != other.own_parts
    assert "Keyed" in first.own_parts
    assert "secret" not in str(first.to_dict())


def test_a_model_that_was_changed_since_begins_another_study(asked: Asked, tmp_path: Path) -> None:
    trainer = built(tmp_path)
    changes = (
        lambda model: model,
        lambda model: model.requires_grad_(True),  # as it was
        lambda model: model.bert.requires_grad_(False),
        lambda model: model.set_attn_implementation("eager"),
        lambda model: model.register_forward_hook(lambda *_: None),
    )
    known = []
    for change in changes:
        change(trainer.model)
        autotune.tune(trainer)
        request = tuning_request("mine", 8)
        workload = user_workload(request, asked[-1][0].pickled)
        known.append(study_identity(request, makers.cpu(), workload, makers.space()))
    assert known[0] == known[1]
    assert [item["own_model"]["attention"] for item in known] == ["sdpa", "sdpa", "sdpa", "eager", "eager"]
    apart = known[1:]
    assert all(item != other for place, item in enumerate(apart) for other in apart[:place])
    assert len({str(item["model_config"]) for item in known[:4]}) == 1, "all that a config says"


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 8),
        ({"fix": {"precision": "fp32"}}, 8),
        ({"fix": {"data_parallel_size": 2}}, 16),
        ({"fix": ["data_parallel_size=2"]}, 16),
        ({"only": {"data_parallel_size": [1, 2]}}, 8),
    ],
    ids=str,
)
def test_a_step_has_the_samples_of_as_many_ranks_as_are_fixed(
    tmp_path: Path, options: dict[str, Any], size: int
) -> None:
    for requested, samples in ((None, size), (4, 4)):
        with tune.sendable(built(tmp_path), options, requested) as (_, found, _):
            assert found == samples
