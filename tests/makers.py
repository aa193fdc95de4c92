"""Makers of nouns for tests: whole and plausible, every fact open to change by name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.result import TuningResult
from autotune.core import Configuration, Environment, InvalidRequest, Measurement, Outcome, Step, Trial, Value, Workload
from autotune.core.note import Note, NoteKind
from autotune.core.promise_verdict import PromiseKind, PromiseVerdict
from autotune.core.request import tuning_request
from autotune.core.stop_reason import StopKind, StopReason
from autotune.core.warning import ResultWarning, WarningKind
from autotune.judge.standing import Standing
from autotune.space.search_space import RuledOut, SearchSpace
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from tests.replay_probe import recorded

MIB = 2**20
GIB = 2**30
ALLOWED = 1000 * MIB
"""What the makers' probes are held to."""

SETTINGS: dict[str, Value] = {
    "checkpointing": "none",
    "precision": "fp32",
    "optimizer": "adamw_torch_fused",
    "workers": 0,
    "pin_memory": False,
}
FIELDS = (
    "activation_checkpointing",
    "bf16",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "fp16",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "learning_rate",
    "optim",
    "per_device_train_batch_size",
    "tf32",
    "use_cpu",
)


def cpu(**facts: Any) -> Environment:
    """A machine of two cores on which the default space's CPU values work."""
    return Environment(
        **{
            "device": "cpu",
            "device_name": "a plain processor",
            "total_memory_bytes": 8 * GIB,
            "free_memory_bytes": 6 * GIB,
            "cpu_count": 2,
            "threads": 2,
            "versions": {"torch": "2.13.0", "transformers": "5.23.0"},
            "autotune_version": "1.2.3",
            "training_argument_fields": FIELDS,
            "checkpointing_options": ("every_n_layers", "offload"),
            "precisions": {"fp32": None, "tf32": "only on GPUs", "fp16": "trains in fp32 on a CPU", "bf16": None},
            "optimizers": dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "sgd")),
            **facts,
        }
    )


def gpu(**facts: Any) -> Environment:
    """A card on which everything works, in a machine of sixteen cores."""
    return cpu(
        **{
            "device": "cuda:0",
            "device_name": "a plain card",
            "device_uuid": "GPU-0123",
            "total_memory_bytes": 80 * GIB,
            "free_memory_bytes": 79 * GIB,
            "compute_capability": (9, 0),
            "driver": "580.1",
            "cpu_count": 16,
            "context_bytes": 500 * MIB,
            "precisions": dict.fromkeys(("fp32", "tf32", "fp16", "bf16")),
            **facts,
        }
    )


def workload(**facts: Any) -> Workload:
    """A small causal language model on synthetic tokens."""
    return Workload(
        **{
            "name": "gpt2-mini",
            "task": "causal-lm",
            "source": "gpt2-mini",
            "model_config": {"model_type": "gpt2", "n_layer": 2},
            "architecture": "GPT2LMHeadModel",
            "sequence_length": 96,
            "parameters": 4_000_000,
            "parameter_bytes": 16_000_000,
            "supports_checkpointing": True,
            "text_source": "random tokens",
            **facts,
        }
    )


def configuration(micro_batch_size: int = 8, global_batch_size: int = 48, **settings: Value) -> Configuration:
    """A configuration of every setting; those not named are as on a plain CPU."""
    return Configuration.exact(global_batch_size, micro_batch_size, SETTINGS | settings)


def step(seconds: float = 1.0, **facts: float) -> Step:
    """One step of a single micro-step that did nothing else, of 8 samples without tokens."""
    known = {"data_wait_s": 0.0, "first_s": 0.0, "middle_s": 0.0, "last_s": seconds, "optimizer_s": 0.0}
    return Step(seconds=seconds, **{"samples": 8, "tokens": 0, **known, **facts})  # type: ignore[arg-type]


def standing_of(trials: Iterable[Trial], objective: str = "samples_per_second") -> Standing:
    """What these trials say."""
    return Standing(tuple(trials), objective)


def completed(
    of: Configuration | None = None,
    samples_per_second: float = 10.0,
    peak_bytes: int = 500 * MIB,
    spread: float = 0.01,
    **facts: Any,
) -> Measurement:
    """A probe that ran to its end at this speed (± spread) with this peak."""
    of = of or configuration()
    return replace(recorded(of, samples_per_second, peak_bytes, max(ALLOWED, peak_bytes), spread), **facts)


def warned(*processes: str) -> tuple[ResultWarning, ...]:
    """Warnings of other processes on the device."""
    return tuple(ResultWarning(WarningKind.SHARED_DEVICE, detail=name) for name in processes)


def ended(outcome: Outcome, **facts: Any) -> Measurement:
    """A probe that did not complete."""
    return Measurement(outcome, **{"reason": f"it {outcome.value}", "allowed_bytes": ALLOWED, **facts})


def out_of_memory(of: Configuration, **facts: Any) -> Measurement:
    """A device out-of-memory in the forward pass of this configuration."""
    steps = of.gradient_accumulation_steps
    known = {"where": "forward", "accumulation_steps": steps, "held_bytes": ALLOWED, "refused_bytes": MIB}
    return ended(Outcome.OUT_OF_MEMORY, **known | facts)


def trial(
    number: int = 0,
    samples_per_second: float = 10.0,
    peak_bytes: int = 500 * MIB,
    of: Configuration | None = None,
    confirmed: float | None = None,
    apart: float = 0.0,
    **facts: Any,
) -> Trial:
    """A completed trial; confirmed: the speed of its two confirmation rounds, which differ by this share from it."""
    of = of or configuration()
    speeds = () if confirmed is None else (confirmed * (1 + apart), confirmed * (1 - apart))
    rounds = (completed(of, speed, peak_bytes, round=number, **facts) for number, speed in enumerate(speeds, 1))
    return Trial(number, of, completed(of, samples_per_second, peak_bytes, **facts), tuple(rounds))


def space(
    baseline: Configuration | None = None,
    micro_batch_size: tuple[int, ...] = (1, 2, 4, 8),
    global_batch_size: int = 8,
    baseline_problem: str = "",
    **settings: tuple[Value, ...],
) -> SearchSpace:
    """A search space of these values; its baseline is the first of each setting and a micro-batch of 2."""
    settings = settings or {"checkpointing": ("none", "full")}
    first = {name: values[0] for name, values in settings.items()}
    return SearchSpace(
        name="test",
        global_batch_size=global_batch_size,
        values={"micro_batch_size": micro_batch_size, **settings},
        baseline=baseline or Configuration.exact(global_batch_size, 2, first),
        baseline_problem=baseline_problem,
    )


def machine(of: Configuration) -> Measurement:
    """A small world: larger micro-batches run faster, checkpointing slower and in half the memory; no two are equal."""
    micro = of.micro_batch_size
    full = of.values.get("checkpointing") == "full"
    speed = 10 * micro**0.5 * (0.8 if full else 1.0) * (1.3 if of.values.get("precision") == "bf16" else 1.0)
    peak = (100 + 300 * micro * (0.5 if full else 1.0)) * MIB
    return recorded(of, speed, int(peak), ALLOWED)


def result(trials: list[Trial] | None = None, **facts: Any) -> TuningResult:
    """A finished search whose second trial is four times as fast as its baseline."""
    slow, fast = configuration(8), configuration(16, precision="bf16")
    trials = trials or [
        trial(0, 10.0, of=slow, confirmed=10.0),
        trial(1, 40.0, of=fast, confirmed=40.0),
        Trial(2, configuration(48), out_of_memory(configuration(48))),
    ]
    return TuningResult(
        **{
            "request": tuning_request("gpt2-mini", 48, device="cpu"),
            "workload": workload(),
            "environment": cpu(),
            "trials": trials,
            "stop": StopReason(StopKind.BUDGET, {"n_trials": 3}),
            "memory_limit_bytes": 1100 * MIB,
            "allowed_bytes": ALLOWED,
            "space_size": 20,
            "ruled_out": (
                RuledOut("precision", "fp16", Exclusion(ExclusionKind.TRIED, detail="trains in fp32 on a CPU")),
            ),
            "notes": (Note(NoteKind.RANDOM_WEIGHTS),),
            "duplicate_proposals": 1,
            "identity": {"task": "causal-lm"},
            **facts,
        }
    )


def verification(of: Configuration, held: bool | None = True, speed_up: float = 3.9) -> dict[str, Any]:
    """What `autotune verify` keeps of an answer, measured to be so many times as fast in six rounds."""
    measured = {"speedup": speed_up, "speedup_low": speed_up - 0.1, "speedup_high": speed_up + 0.1}
    steps = {"yours": {"step_time_s": speed_up}, "answer": {"step_time_s": 1.0}}
    kind = {True: PromiseKind.HELD, False: PromiseKind.SLOWER, None: PromiseKind.WIDE_INTERVAL}[held]
    promised = {"promised": 4.0, "promised_low": 3.9, "promised_high": 4.1}
    verdict = PromiseVerdict(kind, measured | promised | {"width": 0.3, "disturbed": 1, "seconds": 120})
    return {
        "verdict": verdict.to_dict(),
        "held": verdict.held,
        "configuration": of.to_dict(),
        "measured": measured | steps,
        "rounds": {"yours": [{}] * 6, "answer": [{}] * 6},
    }


def space_file(folder: Path, text: str) -> str:
    """The path of a search-space file with this text."""
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def values_of(space: SearchSpace, setting: str) -> Mapping[Value, None]:
    """The values that can be proposed for a setting, in their order."""
    return dict.fromkeys(space.values[setting])


def with_setup(result: TuningResult, **parts: Any) -> TuningResult:
    """The same result with these parts of the recommended trial's setup."""
    changed = replace(result)
    vars(changed)["best_setup"] = replace(result.best_setup, **parts)  # where the cached property keeps it
    return changed


def refusal_of(call: Callable[[], Any], kind: type[InvalidRequest] = InvalidRequest) -> str:
    """The line, with advice, with which this call is refused."""
    with pytest.raises(kind) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert caught.value.advice
    return str(caught.value)
