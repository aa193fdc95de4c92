"""Setting: everything about one thing that can be set, in one place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from autotune.core import Environment, Value, Workload
from autotune.space.settings.exclusion import Exclusion


@dataclass(frozen=True)
class Effect:
    """Fields that a setting's value sets. A dict is merged with the user's dict of that name, and with other settings' dicts."""

    training_arguments: Mapping[str, Any] = field(default_factory=dict)  # fields of `TrainingArguments`
    model_arguments: Mapping[str, Any] = field(default_factory=dict)  # keywords of `from_config` and `from_pretrained`
    environment: Mapping[str, str] = field(default_factory=dict)  # variables of the training process
    contradicts: tuple[str, ...] = ()  # fields that this value rules out, the user's own or other settings'
    processes: int = 0  # that the launcher starts, one a rank (0: the value says nothing of that)
    defaults: Mapping[str, Any] = field(default_factory=dict)  # training arguments if the user has none
    host: Mapping[str, str] = field(default_factory=dict)  # variables read before its first line (an allocator's)
    # How samples become a batch: `pad_to_multiple_of` (None: no such padding), `packing`, `drop_full_attention_mask`.
    data_arguments: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)  # fields of PEFT's `LoraConfig`; rank 0 means no adapter
    switches: Mapping[str, bool] = field(default_factory=dict)  # function of `torch.backends.cuda` -> its argument


ACCUMULATION = "gradient_accumulation_steps"
"""Name that `Setting.forbidden` may use besides settings: it follows from the micro-batch size."""


Rules = Mapping[str, Callable[[Value, Value], Exclusion | None]]
"""Name of another setting -> reason why a value cannot be combined with that value of it, or None if it can."""


@dataclass(frozen=True)
class Context:
    """Context in which a value is judged: the device, the model with its data, and the user's `TrainingArguments` fields."""

    environment: Environment
    workload: Workload
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weight_bytes: int = 4  # of each weight, with the leanest precision of the space


@dataclass(frozen=True)
class Observed:
    """Observations of a running training: the Trainer at `on_train_begin`, and its first micro-step."""

    trainer: Any
    linear_dtype: str  # output of a linear (or convolution) layer, as `bfloat16`; empty if none was seen
    autocast: bool  # whether it was on in that layer
    tf32: bool  # whether matrix products of float32 run in TF32
    threads: int = 1  # that compute one operation on the CPU
    started_with: Mapping[str, str] = field(default_factory=dict)  # environment variables of the process at its start
    libraries: frozenset[str] = frozenset()  # names of the library files in the process
    allocator: Mapping[str, Any] = field(default_factory=dict)  # settings that the device's allocator reports
    graphs: int = 0  # that torch has compiled
    sdpa_kernels: frozenset[str] = frozenset()  # that torch may use: `flash`, `efficient`, `cudnn`, `math`
    frozen_dtypes: frozenset[str] = frozenset()  # of weights that do not learn; empty for a model of the user's own

    @property
    def loader(self) -> Any:
        """The data loader of the training."""
        return self.trainer.callback_handler.train_dataloader

    @property
    def base_model(self) -> Any:
        """The model without PEFT's wrapper."""
        model = self.trainer.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model


class WorkFactors(NamedTuple):
    """Factors on the time of a micro-step's arithmetic, of its kernels, and of the optimizer's step."""

    arithmetic: float = 1.0
    kernels: float = 1.0
    update: float = 1.0


class CostChange(NamedTuple):
    """Expected change of costs by a value that `WorkFactors` cannot express.

    Logarithms of the factors on the seconds of a micro-step and of the optimizer's step, and bytes of the peak beyond the
    estimate for a single process.
    """

    micro_step: float = 0.0
    optimizer_step: float = 0.0
    peak_bytes: float = 0.0


@dataclass(frozen=True)
class Costs:
    """Changes of memory and time by values, as far as they are known before any probe."""

    # Whether the first value needs at least as much memory as the second in every configuration.
    needs_at_least_as_much: Callable[[Value, Value], bool] = lambda value, other: value == other
    memory: bool = True  # whether the setting changes it; its speed every setting changes
    traced: bool = True  # whether an estimate of memory before any probe can tell its values apart
    traceable: Callable[[Value], bool] = lambda value: True  # else a value's estimate is that of `none` plus `change`
    # Whether it trains without float32 weights and gradients of the whole model.
    spares_gradients: Callable[[Value], bool] = lambda value: False
    of_process: bool = False  # it decides who allocates memory, not what a model or a library can do
    # Effect on a step's work on a device of these rates: precision -> operations / second of large matrix products,
    # optimizer -> parameters / second.
    work: Callable[[Value, Mapping[str, float]], WorkFactors] = lambda value, rates: WorkFactors()
    change: Callable[[Value, Context], CostChange] = lambda value, context: CostChange()  # on this device
    seconds: Callable[[Value], float] = lambda value: 0.0  # before the first settled step of a probe or run (compiling)
    # Steps after which its effect repeats: a probe times at least as many.
    period: Callable[[Value], int] = lambda value: 1


NO_MEMORY = Costs(memory=False)


@dataclass(frozen=True)
class Learning:
    """Learning of a model with the values of a setting that changes more than rounding."""

    # The same for values that learn the same, up to rounding (fused and plain AdamW).
    learns: Callable[[Value], Value] = lambda value: value
    differs: Callable[[Value], str] = lambda value: ""  # how training differs


@dataclass(frozen=True)
class Setting:
    """One setting; every function is pure and imports no accelerator."""

    name: str  # as in configurations, search spaces and tables
    values: tuple[Value, ...]  # all of them, in the order to show them
    summary: str  # one sentence for people
    apply: Callable[[Value, Environment], Effect]  # what a value sets
    read_back: Callable[[Observed], Value | None]  # the value that a running training shows; None: cannot be seen
    # The value that the user's own arguments mean for this model. By default the first of `values`.
    from_user: Callable[[Context], Value] = field(default=None)  # type: ignore[assignment]
    # A value from text or YAML; raises ValueError. By default one of `values`, which are words or true and false.
    read: Callable[[Any], Value] = field(default=None)  # type: ignore[assignment]
    # Why a value cannot be used here, or None if it can.
    unavailable: Callable[[Value, Context], Exclusion | None] = lambda value, context: None
    # Another setting, or ACCUMULATION -> why a value cannot be combined with that value of it, or None if it can.
    forbidden: Rules = field(default_factory=dict)
    # Rules of this kind that hold on some devices only.
    forbidden_on: Callable[[Environment], Rules] = lambda environment: {}
    # Another setting, and at which of its values this one has an effect (prefetching: with workers); None: always.
    active_if: tuple[str, Callable[[Value], bool]] | None = None
    costs: Costs = Costs()
    learning: Learning | None = None  # None: the model learns the same with every value
    ordered: bool = False  # whether its values are numbers whose order means something to a sampler
    argument: str = ""  # field of `TrainingArguments` that has its values

    def __post_init__(self) -> None:
        if self.read is None:
            object.__setattr__(self, "read", reader(self.values))
        if self.from_user is None:
            object.__setattr__(self, "from_user", lambda context: self.values[0])

    @property
    def changes(self) -> tuple[str, ...]:
        """Words for people: `speed`, and if it changes them `numerics` and `memory`."""
        return ("speed", *["numerics"] * (self.learning is not None), *["memory"] * self.costs.memory)

    def learns_alike(self, value: Value, other: Value) -> bool:
        """True if a model learns the same with both values."""
        return self.learning is None or self.learning.learns(value) == self.learning.learns(other)


def field_setting(field: str, *, default: Value, **parts: Any) -> Setting:
    """A setting that sets one field of `TrainingArguments`; at `none` it is left out.

    `parts` are the rest of `Setting`, and may replace what follows from the field. default: the Trainer's own, if the user's
    arguments leave the field out or null.
    """
    read = parts.get("read") or reader(parts["values"])
    without = Effect(contradicts=(field,), defaults={field: None})
    from_field: dict[str, Any] = {
        "from_user": lambda context: default if (own := context.arguments.get(field)) is None else read(own),
        "apply": lambda value, environment: without if value == "none" else Effect({field: value}),
        "read_back": lambda observed: read(getattr(observed.trainer.args, field, None)),
    }
    return Setting(argument=field, **{**from_field, **parts})


def joined(shown: Sequence[Value | None]) -> Value | None:
    """Value that a training shows whose layers show these values: the only one, else a text that names all."""
    values = dict.fromkeys(shown)
    return shown[0] if len(values) == 1 else " and ".join(sorted(str(value) for value in values if value is not None))


def shown_values(shown: Any) -> set[str]:
    """The values in the result of `joined`, as texts."""
    return set(str(shown).split(" and "))


def reader(values: tuple[Value, ...]) -> Callable[[Any], Value]:
    """Read one of these values: a word, or true or false."""
    return yes_or_no if isinstance(values[0], bool) else one_of(*map(str, values))


def one_of(*words: str) -> Callable[[Any], str]:
    """Read a value that is one of these words; raises ValueError naming them."""

    def read(text: Any) -> str:
        word = str(text).strip().lower().replace("-", "_")
        if word not in words:
            raise ValueError(f"{text!r} is not one of its values")
        return word

    return read


def whole_number(least: int, most: int) -> Callable[[Any], int]:
    """Read a whole number from `least` to `most`; raises ValueError."""

    def read(text: Any) -> int:
        try:
            number = int(str(text).strip())
        except ValueError:
            raise ValueError(f"{str(text)[:40]!r} is not a whole number") from None
        if not least <= number <= most or isinstance(text, bool):
            raise ValueError(f"{str(text)[:40]!r} is not a whole number from {least} to {most}")
        return number

    return read


def yes_or_no(text: Any) -> bool:
    """Read true or false; raises ValueError."""
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    word = str(text).strip().lower()
    if word not in words:
        raise ValueError(f"{text!r} is neither true nor false")
    return words[word]
