"""Trainers of which something was changed since they were built: `tune(trainer)` refuses them in one line before anything is
started, and by `tune(build, args)` what trains in a probe, and with the answer's arguments, trains as by hand, bit for bit."""

import contextlib
import dataclasses
import functools
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, default_data_collator, set_seed
from transformers.models.bert.modeling_bert import BertSelfAttention

import autotune
from autotune.commands import tune
from autotune.core.errors import InvalidRequest
from autotune.probe.train import run
from autotune.workload.data.sampling import repeat_batches
from autotune.workload.model.pickling import Payload
from autotune.workload.model.user_objects import UserObjects, user_workload
from tests import makers
from tests.hurry import hurry
from tests.probe.probes import make_order
from tests.trainers import Numbers, bert, installed

LOG = Path("/dev/null").open("a")  # noqa: SIM115 (open while it is pickled, and until the process ends)

STEPS, MICRO, ACCUMULATION = 6, 4, 2
SIZES = {"per_device_train_batch_size": MICRO, "gradient_accumulation_steps": ACCUMULATION}
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::autotune.core.errors.LossWarning"),
]


Build = Callable[[Any], Any]


def given(arguments: type = TrainingArguments, **fields: Any) -> Any:
    known = {**SIZES, "max_steps": STEPS, "learning_rate": 1e-2, "report_to": "none", "use_cpu": True}
    return arguments("output", **{**known, "save_strategy": "no", "disable_tqdm": True, **fields})


def built(args: Any, kind: type = Trainer, **parts: Any) -> Any:
    """Of a model with dropout, which starts from the same weights every time."""
    set_seed(7)
    return kind(**{"model": bert(), "args": args, "train_dataset": Numbers(), **parts})


KINDS: dict[str, Build] = {}
"""What was changed, as the documentation names it -> a function that builds a Trainer of which it was changed."""

REFUSED: dict[str, str] = {}
"""Those that `tune(trainer)` refuses -> words of the line that says why."""

ARGUMENTS: dict[str, Callable[[], Any]] = {}
"""Those with arguments of their own."""


def tampering(name: str, refusal: str = "", arguments: Callable[[], Any] = given) -> Callable[[Build], Build]:
    def add(make: Build) -> Build:
        KINDS[name], ARGUMENTS[name] = make, arguments
        if refusal:
            REFUSED[name] = refusal
        return make

    return add


# Methods ----------------------------------------------------------------------------------------------------------


@tampering("a method, such as `compute_loss`", "compute_loss is not as in a fresh Trainer")
def wrapped_loss(args: Any) -> Any:
    trainer = built(args)
    before = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: 3 * before(*args, **kwargs)
    return trainer


# Attributes -------------------------------------------------------------------------------------------------------


class Weighted(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, "weight", 1.0) * super().compute_loss(*args, **kwargs)


@tampering("an attribute that the class reads", "weight is not as in a fresh Weighted")
def weight(args: Any) -> Any:
    trainer = built(args, Weighted)
    trainer.weight = torch.tensor(4.0)
    return trainer


@tampering("`compute_loss_func`")
def loss_func(args: Any) -> Any:
    trainer = built(args)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs["logits"].square().mean()
    return trainer


@tampering("a `data_collator` that holds the Trainer", "data_collator refers to the Trainer itself")
def collator(args: Any) -> Any:
    def collate(rows: list[Any]) -> Any:
        batch = default_data_collator(rows)
        batch["input_ids"][:, trainer.state.global_step % 8] = 3
        return batch

    trainer = built(args)
    trainer.data_collator = collate
    return trainer


@tampering("`train_dataset`")
def dataset(args: Any) -> Any:
    trainer = built(args)
    trainer.train_dataset = torch.utils.data.Subset(Numbers(), range(8, 56))
    return trainer


@tampering("`optimizer`")
def optimizer(args: Any) -> Any:
    trainer = built(args)
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    return trainer


class Rising(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.weight = getattr(self.trainer, "weight", 1.0) * 1.1


@tampering("a callback that holds the Trainer", "callback Rising refers to the Trainer itself")
def callback(args: Any) -> Any:
    trainer = built(args, Weighted)
    trainer.add_callback(Rising(trainer))
    return trainer


@tampering("a number of a layer of the model, such as a dropout's share")
def dropout(args: Any) -> Any:
    trainer = built(args)
    for layer in trainer.model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    return trainer


# Arguments --------------------------------------------------------------------------------------------------------


@tampering("a field of the arguments")
def field(args: Any) -> Any:
    trainer = built(args)
    trainer.args.learning_rate, trainer.args.weight_decay = 3e-2, 0.2
    return trainer


@tampering("a field of the arguments that only the constructor reads", "label_smoother is not as")
def field_too_late(args: Any) -> Any:
    trainer = built(args)
    trainer.args.label_smoothing_factor = 0.5
    return trainer


class Scaling(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return self.args.my_scale * super().compute_loss(*args, **kwargs)


@tampering("an attribute of the arguments that is not a field")
def attribute_of_arguments(args: Any) -> Any:
    trainer = built(args, Scaling)
    trainer.args.my_scale = 2.0
    return trainer


@dataclass
class Doubling(TrainingArguments):
    factor: float = 2.0
    steps_seen: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learning_rate *= self.factor
        self.steps_seen += 1
        self.doubled = True


@tampering("arguments whose `__post_init__` scales a field: it is not scaled again", arguments=lambda: given(Doubling))
def scaled_fields(args: Any) -> Any:
    return built(args)


class Faster(Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.args.learning_rate *= 3


@tampering("a Trainer whose `__init__` scales a field: likewise")
def scaled_by_the_trainer(args: Any) -> Any:
    return built(args, Faster)


class Insisting(Trainer):
    def __init__(self, model: Any, args: Any, **kwargs: Any) -> None:
        args.per_device_train_batch_size = 2
        super().__init__(model, args, **kwargs)


@tampering("a Trainer whose `__init__` sets the batch size: the answer's counts")
def insisted_batch(args: Any) -> Any:
    return built(args, Insisting)


class Halving(Trainer):
    def __init__(self, *args: Any, train_dataset: Any = None, **kwargs: Any) -> None:
        half = torch.utils.data.Subset(train_dataset, range(0, len(train_dataset), 2))
        super().__init__(*args, train_dataset=half, **kwargs)


@tampering("a Trainer whose `__init__` wraps its dataset", "train_dataset is not as in a fresh Halving")
def wrapped_data(args: Any) -> Any:
    return built(args, Halving, train_dataset=Numbers(128))


class Renaming(Trainer):
    def __init__(self, *args: Any, strength: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.s = strength

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return self.s * super().compute_loss(*args, **kwargs)


@tampering("an argument that the class keeps under another name", "s is not as in a fresh Renaming")
def renamed_argument(args: Any) -> Any:
    return built(args, Renaming, strength=5.0)


# Refused ----------------------------------------------------------------------------------------------------------


@tampering("a method of the accelerator", "accelerator.backward is not as")
def backward(args: Any) -> Any:
    trainer = built(args)
    before = trainer.accelerator.backward
    trainer.accelerator.backward = lambda loss, **kwargs: before(2 * loss, **kwargs)
    return trainer


@tampering("`bf16` or `fp16`, which the accelerator was built without", "was built without mixed precision")
def late_precision(args: Any) -> Any:
    trainer = built(args)
    trainer.args.bf16 = True
    return trainer


@tampering(
    "`per_device_train_batch_size`, which the Trainer has read", "built with a micro-batch of 4, which it trains"
)
def late_batch_size(args: Any) -> Any:
    trainer = built(args)
    trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps = 2, 4
    return trainer


@tampering("an attribute that was deleted", "label_smoother is not as")
def deleted(args: Any) -> Any:
    trainer = built(args)
    del trainer.label_smoother
    return trainer


class Renamed(Trainer):
    def __init__(self, net: Any, cfg: Any, rows: Any) -> None:
        super().__init__(net, cfg, train_dataset=rows)


@tampering(
    "a Trainer whose constructor names its parts otherwise", "no parameter model and no args and no train_dataset"
)
def renamed_parts(args: Any) -> Any:
    set_seed(7)
    return Renamed(bert(), args, Numbers())


@dataclass
class Splitting(TrainingArguments):
    milestones: Any = "1,2"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.milestones = [int(step) for step in self.milestones.split(",")]


@tampering(
    "arguments whose `__post_init__` does not accept what it has made",
    "cannot be made again",
    arguments=lambda: given(Splitting, milestones="3,4"),
)
def arguments_for_once(args: Any) -> Any:
    return built(args)


class Widening(Trainer):
    def __init__(self, model: Any, **kwargs: Any) -> None:
        model.classifier = torch.nn.Sequential(torch.nn.Linear(16, 16), model.classifier)
        super().__init__(model, **kwargs)


@tampering("a Trainer whose `__init__` changes its model", "changes the model, and would")
def changed_model(args: Any) -> Any:
    return built(args, Widening)


class Wrapping(Trainer):
    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(Wrapped(model), **kwargs)


class Wrapped(torch.nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids: Any, labels: Any) -> Any:
        outputs = self.inner(input_ids=input_ids, labels=labels)
        return {"loss": 3 * outputs["loss"]}


@tampering("a Trainer whose `__init__` wraps its model", "wraps the model, and would")
def wrapped_model(args: Any) -> Any:
    return built(args, Wrapping)


class Distilling(Trainer):
    def __init__(self, teacher_model: Any = None, student_model: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, model=student_model, **kwargs)
        self.teacher_model = teacher_model

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        outputs = model(**inputs)
        with torch.no_grad():
            target = self.teacher_model(**inputs)["logits"]
        loss = outputs["loss"] + (outputs["logits"] - target).square().mean()
        return (loss, outputs) if return_outputs else loss


@tampering("a Trainer whose constructor has another name for the model", "A fresh Distilling cannot be built")
def distilled(args: Any) -> Any:
    set_seed(7)
    return Distilling(bert(), bert(), args=args, train_dataset=Numbers())


class Noting(TrainerCallback):
    def __init__(self, share: float = 1.0) -> None:
        self.share = share

    def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        for parameter in model.parameters():
            parameter.grad.mul_(self.share)


class Adding(Trainer):
    def __init__(self, *args: Any, share: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(Noting(share))


@tampering("an argument of a callback that the class makes", "callback Noting is not as in a fresh Adding")
def share_of_a_callback(args: Any) -> Any:
    return built(args, Adding, share=1e-3)


# Models and optimizers -----------------------------------------------------------------------------------------------


@tampering("a hook of a parameter of the model", "hooks cannot be sent")
def hooked_parameter(args: Any) -> Any:
    trainer = built(args)
    trainer.model.classifier.weight.register_hook(lambda gradient: 5 * gradient)
    return trainer


@tampering(
    "a function of the model that uses an open file",
    "The model cannot be sent to another process: it holds an open file",
)
def logging_model(args: Any) -> Any:
    trainer = built(args)
    model, log = trainer.model, LOG

    def train(self: Any, mode: bool = True) -> Any:
        log.write("train\n")
        type(self).train(self, mode)
        return self.bert.eval() and self

    model.train = types.MethodType(train, model)
    return trainer


def stepping(optimizer: type = torch.optim.SGD, **settings: Any) -> Callable[[Any], tuple[Any, Any]]:
    def make(args: Any) -> tuple[Any, Any]:
        set_seed(7)
        model = bert()
        made = optimizer(model.parameters(), lr=0.1, **settings)
        return Trainer(model, args, train_dataset=Numbers(), optimizers=(made, None)), made

    return make


@tampering("a hook of the optimizer's steps")
def hooked_steps(args: Any) -> Any:
    trainer, made = stepping()(args)
    made.register_step_pre_hook(
        lambda own, *_: [weight.grad.mul_(3) for weight in own.param_groups[0]["params"]] and None
    )
    return trainer


@tampering("the optimizer's `step`")
def other_steps(args: Any) -> Any:
    def twice(self: Any, closure: Any = None) -> None:
        type(self).step(self)
        type(self).step(self)

    trainer, made = stepping()(args)
    made.step = types.MethodType(twice, made)
    return trainer


class Rounds(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float, rounds: int = 1) -> None:
        super().__init__(params, {"lr": lr})
        self.rounds = rounds

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            weight.add_(weight.grad, alpha=-self.param_groups[0]["lr"] * self.rounds)


@tampering("an argument of an optimizer that is no setting of its groups")
def rounds(args: Any) -> Any:
    return stepping(Rounds, rounds=4)(args)[0]


class Around(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float, base: Any) -> None:
        super().__init__(params, {"lr": lr})
        self.base = base(self.param_groups, lr=lr)

    def step(self, closure: Any = None) -> Any:
        return self.base.step(closure)


@tampering("an optimizer that wraps another one")
def wrapped_optimizer(args: Any) -> Any:
    return stepping(Around, base=torch.optim.Adagrad)(args)[0]


# The tests --------------------------------------------------------------------------------------------------------


def losses(trainer: Any, weights: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Of every micro-step, from the same weights and random numbers on. Batches as a probe draws them."""
    seen: list[torch.Tensor] = []
    step = trainer.training_step

    def training_step(*args: Any, **kwargs: Any) -> Any:
        seen.append(step(*args, **kwargs))
        return seen[-1]

    trainer.training_step = training_step
    trainer.model.load_state_dict(weights)
    set_seed(11)
    trainer.train()
    return seen


@pytest.fixture(autouse=True, scope="module")
def folder_of_outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The current folder, in which Trainers make their output folder."""
    with contextlib.chdir(tmp_path_factory.mktemp("outputs")):
        yield


@pytest.fixture(scope="module")
def unchanged() -> torch.Tensor:
    """Losses of a Trainer of which nothing was changed."""
    return by_hand(built(given()))


def by_hand(trainer: Any, weights: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    """Losses of a Trainer's training, with batches as a probe draws them. weights: by default its own."""
    repeat_batches(trainer, (STEPS + 1) * ACCUMULATION)
    return torch.stack(losses(trainer, weights or trainer.model.state_dict()))


@pytest.fixture
def payload(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Payload, dict[str, Any]]]:
    """What `tune` sends, and the arguments that are its baseline."""

    def of(*given: Any) -> tuple[Payload, dict[str, Any]]:
        calls: list[tuple[Payload, dict[str, Any]]] = []
        monkeypatch.setattr(tune, "search", lambda brought, size, args, **_: calls.append((brought, args)))
        autotune.tune(*given)
        return calls[0]

    return of


def probed(brought: Payload, base: dict[str, Any], folder: Path) -> Any:
    """The Trainer of a probe of the baseline."""
    micro, accumulation = base["per_device_train_batch_size"], base["gradient_accumulation_steps"]
    request = autotune.core.request.tuning_request("mine", micro * accumulation, args=base, device="cpu")
    asked = makers.configuration(micro, micro * accumulation)
    workload = user_workload(request, brought.pickled)
    machine = makers.cpu(training_argument_fields=tuple(installed(dict.fromkeys(makers.FIELDS))))
    order = make_order(folder, machine, asked=asked, base=base, workload=workload)
    arguments = run.arguments_of(order, brought.pickled, folder, max_steps=STEPS)
    return run.trainer_of(order, UserObjects.opened(brought.pickled, arguments), arguments, STEPS)


def answer(args: Any) -> Any:
    """The result of a search that keeps the sizes of these arguments."""
    micro = args.per_device_train_batch_size
    of = makers.configuration(micro, micro * ACCUMULATION)
    return makers.result([makers.trial(0, of=of)], workload=makers.workload(user_objects=True, built=True))


Sent = Callable[..., tuple[Payload, dict[str, Any]]]
TAKEN = [name for name in KINDS if name not in REFUSED]
NOT_BUILT = {
    "a Trainer whose `__init__` sets the batch size: the answer's counts": "per_device_train_batch_size is 2, and args says 4",
    "`per_device_train_batch_size`, which the Trainer has read": "per_device_train_batch_size is 2, and args says 4",
    "arguments whose `__post_init__` does not accept what it has made": "cannot be made again",
    "an attribute that was deleted": "",
}
"""Those that cannot be built by their arguments alone -> words of the line that says why; empty if they do not train."""


WITHOUT_EFFECT = (
    "a field of the arguments that only the constructor reads",
    "`bf16` or `fp16`, which the accelerator was built without",
    "a Trainer whose constructor names its parts otherwise",
)
"""Those that do not change what is learned here."""


@pytest.mark.parametrize("name", TAKEN)
def test_a_probe_and_the_answer_s_trainer_learn_as_the_user_s_own(
    name: str, payload: Sent, unchanged: torch.Tensor, tmp_path: Path
) -> None:
    user, own, sent = (KINDS[name](ARGUMENTS[name]()) for _ in range(3))
    weights = {key: value.clone() for key, value in user.model.state_dict().items()}
    expected = by_hand(user, weights)
    assert len(expected) == STEPS * ACCUMULATION
    assert not torch.equal(expected, unchanged), "the comparison below is worth something"
    made = answer(own.args).apply(own)
    assert made.args.to_dict() == own.args.to_dict()
    assert torch.equal(by_hand(made, weights), expected)
    assert torch.equal(torch.stack(losses(probed(*payload(sent), tmp_path), weights)), expected)


BUILT = [name for name in REFUSED if name not in NOT_BUILT]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly) if number % 6 else name for number, name in enumerate(BUILT)],
)
def test_what_a_function_builds_learns_in_a_probe_and_with_the_answer_s_arguments_as_by_hand(
    name: str, payload: Sent, unchanged: torch.Tensor, tmp_path: Path
) -> None:
    build, args = KINDS[name], ARGUMENTS[name]()
    expected = by_hand(build(ARGUMENTS[name]()))
    assert len(expected) == STEPS * ACCUMULATION
    assert torch.equal(expected, unchanged) == (name in WITHOUT_EFFECT), "the comparison below is worth something"
    trainer = probed(*payload(build, args), tmp_path)
    assert torch.equal(torch.stack(losses(trainer, trainer.model.state_dict())), expected)
    assert torch.equal(by_hand(build(answer(args).arguments(args))), expected)


@pytest.mark.parametrize("name", [*REFUSED])
def test_what_a_fresh_trainer_is_not_is_refused_in_one_line_with_the_way_out(name: str, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    with pytest.raises(InvalidRequest, match=REFUSED[name]) as caught:
        autotune.tune(KINDS[name](ARGUMENTS[name]()), output_dir=reports)
    assert "\n" not in str(caught.value)
    ways_out = ("autotune.tune(build, args), then build(result.arguments(args)).train()", "before the Trainer is built")
    assert "__post_init__" in name or any(way in str(caught.value) for way in ways_out)
    assert not reports.exists()


@pytest.mark.parametrize("name", [name for name, words in NOT_BUILT.items() if words])
def test_what_its_arguments_do_not_decide_is_refused_for_a_function_too(
    name: str, payload: Sent, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=NOT_BUILT[name]):
        probed(*payload(KINDS[name], ARGUMENTS[name]()), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", BUILT)
def test_what_a_fresh_trainer_is_not_is_searched_by_the_function_that_builds_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    build, kind = KINDS[name], type(ARGUMENTS[name]())
    options = {"only": {"micro_batch_size": [4, 8], "precision": ["fp32"]}, "n_trials": 2, "no_history": True}
    result = autotune.tune(build, ARGUMENTS[name](), space="quick", output_dir=str(tmp_path), **options)
    assert result.baseline.measurement.outcome == "completed"
    fields = {**SIZES, "max_steps": 20}
    known = {item.name for item in dataclasses.fields(kind)}
    by_the_answer = {key: value for key, value in result.best_setup.training_arguments.items() if key in known}
    weights = []
    for args in (result.arguments(given(kind, **fields)), given(kind, **{**by_the_answer, "max_steps": 20})):
        trainer = build(args)
        trainer.train()
        weights.append(torch.nn.utils.parameters_to_vector(trainer.model.parameters()))
    assert torch.equal(*weights)


def test_the_documentation_names_them_all() -> None:
    page = (Path(__file__).parents[3] / "docs" / "own_trainer.md").read_text(encoding="utf-8")
    rows = [
        tuple(row.strip("| ").split(" | ")) for row in page.splitlines() if row.endswith(("| taken |", "| refused |"))
    ]
    assert rows == [(name, "refused" if name in REFUSED else "taken") for name in KINDS]


def test_a_method_that_was_replaced_on_a_class_of_a_library_is_refused(
    payload: Callable[[Any], tuple[Payload, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial imports the class from its file, without that."""
    request = autotune.core.request.tuning_request("mine", 8)
    for owner, name in ((Trainer, "compute_loss"), (BertSelfAttention, "forward")):
        before = getattr(owner, name)

        @functools.wraps(before)
        def replaced(*args: Any, before: Any = before, **kwargs: Any) -> Any:
            return before(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replaced)
            brought, _ = payload(built(given()))
        with pytest.raises(InvalidRequest, match=f"{owner.__name__}.{name} was replaced in your process"):
            user_workload(request, brought.pickled)
    user_workload(request, payload(built(given()))[0].pickled)


def test_arguments_keep_what_their_class_would_change_again(tmp_path: Path) -> None:
    trainer = scaled_fields(given(Doubling))
    answer = makers.result(workload=makers.workload(user_objects=True), user_arguments=trainer.args)
    with warnings.catch_warnings(action="ignore"):
        for args in (answer.training_arguments(), answer.apply(trainer).args):
            assert (args.learning_rate, args.steps_seen, args.doubled) == (2e-2, 2, True)
            assert args.per_device_train_batch_size == answer.best.configuration.micro_batch_size
