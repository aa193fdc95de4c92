"""Trainers of which something was changed since they were built: what trains in a probe, and after `apply`, trains as the
user's own, bit for bit; or it is refused in one line before anything is started."""

import contextlib
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
from transformers.trainer_pt_utils import LabelSmoother

import autotune
from autotune.commands import tune
from autotune.core.errors import InvalidRequest
from autotune.probe.train import run
from autotune.workload.data.sampling import repeat_batches
from autotune.workload.model.pickling import Payload
from autotune.workload.model.user_objects import UserObjects, user_workload
from tests import makers
from tests.probe.probes import make_order
from tests.trainers import Numbers, bert, installed

STEPS, MICRO, ACCUMULATION = 6, 4, 2
SIZES = {"per_device_train_batch_size": MICRO, "gradient_accumulation_steps": ACCUMULATION}
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::autotune.core.errors.LossWarning"),
]


def built(
    kind: type = Trainer, arguments: type = TrainingArguments, fields: dict[str, Any] | None = None, **parts: Any
) -> Any:
    """Of a model with dropout, which starts from the same weights every time."""
    known = {**SIZES, "max_steps": STEPS, "learning_rate": 1e-2, "report_to": "none", "use_cpu": True}
    args = arguments("output", save_strategy="no", disable_tqdm=True, **{**known, **(fields or {})})
    set_seed(7)
    return kind(**{"model": bert(), "args": args, "train_dataset": Numbers(), **parts})


KINDS: dict[str, Callable[[], Any]] = {}
"""What was changed, as the documentation names it -> a Trainer of which it was changed."""

REFUSED: dict[str, str] = {}
"""Those that are refused -> words of the line that says why."""


def tampering(name: str, refusal: str = "") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def add(make: Callable[[], Any]) -> Callable[[], Any]:
        KINDS[name] = make
        if refusal:
            REFUSED[name] = refusal
        return make

    return add


# Methods ----------------------------------------------------------------------------------------------------------


@tampering("`compute_loss`, by a function that calls the method it replaces")
def wrapped_loss() -> Any:
    trainer = built()
    before = trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: 3 * before(*args, **kwargs)
    return trainer


@tampering("`compute_loss`, by a bound method (`types.MethodType`)")
def bound_loss() -> Any:
    def compute_loss(self: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return type(self).compute_loss(self, model, inputs, *args, **kwargs) / self.args.gradient_accumulation_steps

    trainer = built()
    trainer.compute_loss = types.MethodType(compute_loss, trainer)
    return trainer


BEFORE: Any = None
SCALE = 1.0


def loss_of_a_script(*args: Any, **kwargs: Any) -> Any:
    return SCALE * BEFORE(*args, **kwargs)


@tampering("`compute_loss`, by a function that reads the Trainer's method from a global")
def loss_with_globals() -> Any:
    global BEFORE, SCALE
    trainer = built()
    BEFORE, SCALE = trainer.compute_loss, 2.5
    trainer.compute_loss = loss_of_a_script
    return trainer


@tampering("`compute_loss`, by a `functools.partial` of it")
def partial_loss() -> Any:
    def scaled(loss: Any, scale: float, *args: Any, **kwargs: Any) -> Any:
        return scale * loss(*args, **kwargs)

    trainer = built()
    trainer.compute_loss = functools.partial(scaled, trainer.compute_loss, 0.5)
    return trainer


class Penalty:
    def __init__(self, trainer: Any) -> None:
        self.trainer, self.calls = trainer, 0

    def __call__(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        loss = type(self.trainer).compute_loss(self.trainer, model, inputs, *args, **kwargs)
        return loss + 1e-2 * self.trainer.args.learning_rate * self.calls * model.classifier.weight.square().sum()


@tampering("`compute_loss`, by an object that holds the Trainer")
def loss_of_an_object() -> Any:
    trainer = built()
    trainer.compute_loss = Penalty(trainer)
    return trainer


@tampering("`training_step`")
def other_step() -> Any:
    def training_step(model: Any, inputs: Any, *args: Any) -> Any:
        loss = before(model, inputs, *args)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.clamp_(-1e-3, 1e-3)
        return loss

    trainer = built()
    before = trainer.training_step
    trainer.training_step = training_step
    return trainer


@tampering("`get_train_dataloader`")
def other_loader() -> Any:
    trainer = built()
    data = torch.utils.data.Subset(Numbers(), range(63, -1, -1))
    loader = torch.utils.data.DataLoader(data, MICRO, collate_fn=default_data_collator)
    trainer.get_train_dataloader = lambda: loader
    return trainer


@tampering("`create_optimizer`")
def other_optimizer() -> Any:
    def create_optimizer(self: Any, model: Any = None) -> Any:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate, momentum=0.5)
        return self.optimizer

    trainer = built()
    trainer.create_optimizer = types.MethodType(create_optimizer, trainer)
    return trainer


@tampering("`create_scheduler`")
def other_schedule() -> Any:
    def create_scheduler(num_training_steps: int, optimizer: Any = None) -> Any:
        trainer.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer or trainer.optimizer, 0.7)
        trainer._created_lr_scheduler = True
        return trainer.lr_scheduler

    trainer = built()
    trainer.create_scheduler = create_scheduler
    return trainer


# Attributes -------------------------------------------------------------------------------------------------------


class Weighted(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, "weight", 1.0) * super().compute_loss(*args, **kwargs)


@tampering("an attribute that the class reads")
def weight() -> Any:
    trainer = built(Weighted)
    trainer.weight = torch.tensor(4.0)
    return trainer


@tampering("`label_smoother`")
def smoother() -> Any:
    trainer = built()
    trainer.label_smoother = LabelSmoother(epsilon=0.3)
    return trainer


@tampering("`compute_loss_func`")
def loss_func() -> Any:
    trainer = built()
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs["logits"].square().mean()
    return trainer


@tampering("`model_accepts_loss_kwargs`")
def loss_kwargs() -> Any:
    trainer = built()
    trainer.model_accepts_loss_kwargs = not trainer.model_accepts_loss_kwargs
    return trainer


@tampering("`data_collator`")
def collator() -> Any:
    def collate(rows: list[Any]) -> Any:
        batch = default_data_collator(rows)
        batch["input_ids"][:, trainer.state.global_step % 8] = 3
        return batch

    trainer = built()
    trainer.data_collator = collate
    return trainer


@tampering("`train_dataset`")
def dataset() -> Any:
    trainer = built()
    trainer.train_dataset = torch.utils.data.Subset(Numbers(), range(8, 56))
    return trainer


@tampering("`optimizer`")
def optimizer() -> Any:
    trainer = built()
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.5)
    return trainer


class Rising(TrainerCallback):
    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.trainer.weight = getattr(self.trainer, "weight", 1.0) * 1.1


@tampering("a callback that holds the Trainer")
def callback() -> Any:
    trainer = built(Weighted)
    trainer.add_callback(Rising(trainer))
    return trainer


@tampering("a number of a layer of the model, such as a dropout's share")
def dropout() -> Any:
    trainer = built()
    for layer in trainer.model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    return trainer


# Arguments --------------------------------------------------------------------------------------------------------


@tampering("a field of the arguments")
def field() -> Any:
    trainer = built()
    trainer.args.learning_rate, trainer.args.weight_decay = 3e-2, 0.2
    return trainer


@tampering("a field of the arguments that only the constructor reads: it has no effect then")
def field_too_late() -> Any:
    trainer = built()
    trainer.args.label_smoothing_factor = 0.5
    return trainer


class Scaling(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return self.args.my_scale * super().compute_loss(*args, **kwargs)


@tampering("an attribute of the arguments that is not a field")
def attribute_of_arguments() -> Any:
    trainer = built(Scaling)
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


@tampering("arguments whose `__post_init__` scales a field: it is not scaled again")
def scaled_fields() -> Any:
    return built(arguments=Doubling)


class Faster(Trainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.args.learning_rate *= 3


@tampering("a Trainer whose `__init__` scales a field: likewise")
def scaled_by_the_trainer() -> Any:
    return built(Faster)


class Insisting(Trainer):
    def __init__(self, model: Any, args: Any, **kwargs: Any) -> None:
        args.per_device_train_batch_size = 2
        super().__init__(model, args, **kwargs)


@tampering("a Trainer whose `__init__` sets the batch size: the answer's counts")
def insisted_batch() -> Any:
    return built(Insisting)


class Halving(Trainer):
    def __init__(self, *args: Any, train_dataset: Any = None, **kwargs: Any) -> None:
        half = torch.utils.data.Subset(train_dataset, range(0, len(train_dataset), 2))
        super().__init__(*args, train_dataset=half, **kwargs)


@tampering("a Trainer whose `__init__` wraps its dataset: it is not wrapped again")
def wrapped_data() -> Any:
    return built(Halving, train_dataset=Numbers(128))


class Renaming(Trainer):
    def __init__(self, *args: Any, strength: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.s = strength

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return self.s * super().compute_loss(*args, **kwargs)


@tampering("an argument that the class keeps under another name, with `allow_defaults=True`")
def renamed_argument() -> Any:
    return built(Renaming, strength=5.0)


# Refused ----------------------------------------------------------------------------------------------------------


@tampering("a method of the accelerator", "backward of the Trainer's accelerator")
def backward() -> Any:
    trainer = built()
    before = trainer.accelerator.backward
    trainer.accelerator.backward = lambda loss, **kwargs: before(2 * loss, **kwargs)
    return trainer


@tampering("`bf16` or `fp16`, which the accelerator was built without", "built without mixed precision")
def late_precision() -> Any:
    trainer = built()
    trainer.args.bf16 = True
    return trainer


@tampering("`per_device_train_batch_size`, which the Trainer has read", "built with batches of 4")
def late_batch_size() -> Any:
    trainer = built()
    trainer.args.per_device_train_batch_size, trainer.args.gradient_accumulation_steps = 2, 4
    return trainer


@tampering("a function that holds a part of the Trainer, such as its accelerator", "refers to its accelerator")
def loss_with_a_part() -> Any:
    trainer = built()
    accelerator, before = trainer.accelerator, trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: accelerator.num_processes * before(*args, **kwargs)
    return trainer


def counting_loss(*args: Any, **kwargs: Any) -> Any:
    global SCALE
    SCALE += 0.1
    return SCALE * BEFORE(*args, **kwargs)


@tampering("a function that assigns globals and reads the Trainer from one", "assigns globals")
def assigning_loss() -> Any:
    global BEFORE
    trainer = built()
    BEFORE = trainer.compute_loss
    trainer.compute_loss = counting_loss
    return trainer


@tampering("an attribute that was deleted", "has no label_smoother")
def deleted() -> Any:
    trainer = built()
    del trainer.label_smoother
    return trainer


@tampering("a function that uses an open file", "uses .*, an open file")
def logged_loss() -> Any:
    trainer = built()
    before, log = trainer.compute_loss, Path("/dev/null").open("a")  # noqa: SIM115 (open while it is pickled)

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        log.write("step\n")
        return before(*args, **kwargs)

    trainer.compute_loss = compute_loss
    return trainer


class Renamed(Trainer):
    def __init__(self, net: Any, cfg: Any, rows: Any) -> None:
        super().__init__(net, cfg, train_dataset=rows)


@tampering(
    "a Trainer whose constructor names its parts otherwise", "no parameter model and no args and no train_dataset"
)
def renamed_parts() -> Any:
    return Renamed(bert(), built().args, Numbers())


@dataclass
class Splitting(TrainingArguments):
    milestones: Any = "1,2"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.milestones = [int(step) for step in self.milestones.split(",")]


@tampering("arguments whose `__post_init__` does not accept what it has made", "cannot be made again")
def arguments_for_once() -> Any:
    return built(arguments=Splitting, fields={"milestones": "3,4"})


class Widening(Trainer):
    def __init__(self, model: Any, **kwargs: Any) -> None:
        model.classifier = torch.nn.Sequential(torch.nn.Linear(16, 16), model.classifier)
        super().__init__(model, **kwargs)


@tampering("a Trainer whose `__init__` changes its model", "changes the model that it is given")
def changed_model() -> Any:
    return built(Widening)


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
    trainer = built()
    repeat_batches(trainer, (STEPS + 1) * ACCUMULATION)
    return torch.stack(losses(trainer, trainer.model.state_dict()))


@pytest.fixture
def payload(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], tuple[Payload, dict[str, Any]]]:
    """What `tune` sends, and the arguments that are its baseline."""

    def of(trainer: Any) -> tuple[Payload, dict[str, Any]]:
        calls: list[tuple[Payload, dict[str, Any]]] = []
        monkeypatch.setattr(tune, "search", lambda brought, size, args, **_: calls.append((brought, args)))
        autotune.tune(trainer)
        return calls[0]

    return of


def probed(brought: Payload, base: dict[str, Any], folder: Path) -> Any:
    """The Trainer of a probe of the baseline."""
    micro, accumulation = base["per_device_train_batch_size"], base["gradient_accumulation_steps"]
    request = autotune.core.request.tuning_request("mine", micro * accumulation)
    asked = makers.configuration(micro, micro * accumulation)
    workload = user_workload(request, brought.pickled)
    machine = makers.cpu(training_argument_fields=tuple(installed(dict.fromkeys(makers.FIELDS))))
    order = make_order(folder, machine, asked=asked, base=base, workload=workload)
    arguments = run.arguments_of(order, brought.pickled, folder, max_steps=STEPS)
    return run.trainer_of(order, UserObjects.opened(brought.pickled, arguments), arguments, STEPS)


CARRIED = [name for name in KINDS if name not in REFUSED]


@pytest.mark.parametrize("name", CARRIED)
def test_a_probe_and_the_answer_s_trainer_learn_as_the_user_s_own(
    name: str, payload: Callable[[Any], tuple[Payload, dict[str, Any]]], unchanged: torch.Tensor, tmp_path: Path
) -> None:
    user, given, sent = KINDS[name](), KINDS[name](), KINDS[name]()
    weights = {key: value.clone() for key, value in user.model.state_dict().items()}
    repeat_batches(user, (STEPS + 1) * user.args.gradient_accumulation_steps)
    expected = losses(user, weights)
    assert len(expected) == STEPS * ACCUMULATION
    assert torch.equal(torch.stack(expected), unchanged) == ("no effect" in name), (
        "the comparison below is worth something"
    )

    micro = user.args.per_device_train_batch_size
    of = makers.configuration(micro, micro * ACCUMULATION)
    answer = makers.result([makers.trial(0, of=of)], workload=makers.workload(user_objects=True))
    made = answer.apply(given, allow_defaults="allow_defaults" in name)
    assert made.args.to_dict() == given.args.to_dict()
    repeat_batches(made, (STEPS + 1) * ACCUMULATION)
    assert torch.equal(torch.stack(losses(made, weights)), torch.stack(expected))

    trainer = probed(*payload(sent), tmp_path)
    assert torch.equal(torch.stack(losses(trainer, weights)), torch.stack(expected))


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    with pytest.raises(InvalidRequest, match=REFUSED[name]) as caught:
        autotune.tune(KINDS[name](), output_dir=reports)
    assert "\n" not in str(caught.value)
    assert not reports.exists()


def test_the_documentation_names_them_all() -> None:
    page = (Path(__file__).parents[3] / "docs" / "own_trainer.md").read_text(encoding="utf-8")
    rows = [
        tuple(row.strip("| ").split(" | ")) for row in page.splitlines() if row.endswith(("| carried |", "| refused |"))
    ]
    assert rows == [(name, "refused" if name in REFUSED else "carried") for name in KINDS]


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
            brought, _ = payload(built())
        with pytest.raises(InvalidRequest, match=f"{owner.__name__}.{name} was replaced in your process"):
            user_workload(request, brought.pickled)
    user_workload(request, payload(built())[0].pickled)


def test_an_argument_that_is_not_kept_is_refused_by_apply_unless_its_default_is_allowed() -> None:
    with pytest.raises(InvalidRequest, match="does not keep strength"):
        makers.result().apply(renamed_argument())


def test_arguments_keep_what_their_class_would_change_again(tmp_path: Path) -> None:
    trainer = scaled_fields()
    answer = makers.result(workload=makers.workload(user_objects=True), user_arguments=trainer.args)
    with warnings.catch_warnings(action="ignore"):
        for args in (answer.training_arguments(), answer.apply(trainer).args):
            assert (args.learning_rate, args.steps_seen, args.doubled) == (2e-2, 2, True)
            assert args.per_device_train_batch_size == answer.best.configuration.micro_batch_size
