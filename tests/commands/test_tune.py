"""`tune`, for real: the user's own Trainer is what probes train, and what the answer goes back into."""

import contextlib
import os
import sys
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
from autotune.probe.process.guard import why_unguarded
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
