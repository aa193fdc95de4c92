"""Records a table for replaying searches: configurations of a space really probed, from which the whole space is composed.

python benchmarks/record_table.py NAME [SECONDS]: one of TABLES into tests/data/tables/NAME.jsonl: what is searched in
the first line, then a configuration a line in an order drawn once. NAME.known.json holds what is known before any probe: the
estimate of each peak, and what the device can do. Every line is written at once: the same command goes on where it
was stopped, and stops by itself when the seconds are over. Needs an idle machine, about five minutes a table.

The design (`design`): every combination of micro-batch size, checkpointing and precision with one optimizer and without workers,
as these interact; each other optimizer and number of workers at three of these, spread over sizes and precisions (workers at all
without checkpointing where `slow_loader`, as what they win there depends on the step's length). `tables.Design` makes the rest.

Probes run on one thread: on two speeds err by 8 to 27 % from process to process instead of 3 to 13. Some tables give what they
free back to the machine at once (OF_PAGES): peaks err by 1 MiB instead of up to 30, and micro-steps of large tensors are slower.
"""

import dataclasses
import json
import os
import random
import sys
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from fidelity import asked  # noqa: E402
from tables import FOLDER, Row  # noqa: E402

from autotune.core.configuration import Configuration  # noqa: E402
from autotune.core.environment import Environment  # noqa: E402
from autotune.core.measurement import Outcome  # noqa: E402
from autotune.core.request import tuning_request  # noqa: E402
from autotune.core.slot import Slot  # noqa: E402
from autotune.core.workload import Workload  # noqa: E402
from autotune.probe import ProbeOptions  # noqa: E402
from autotune.probe.order import Timing  # noqa: E402
from autotune.probe.process.launcher import ProbeHost  # noqa: E402
from autotune.probe.queries import known_rates, traced  # noqa: E402
from autotune.probe.runner import LiveProbe  # noqa: E402
from autotune.sampler.candidates import narrowed  # noqa: E402
from autotune.space.build import build_space  # noqa: E402
from autotune.space.search_space import SearchSpace  # noqa: E402


def config(model_type: str, **fields: Any) -> dict[str, Any]:
    """Fields of a model's config, with the numbers of the special tokens."""
    return {"model_type": model_type, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **fields}


def llama(layers: int, width: int, heads: int, vocabulary: int, positions: int = 2048) -> dict[str, Any]:
    """A Llama with grouped keys, its inner width 8/3 of its width."""
    return config(
        "llama",
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=positions,
    )


def encoder(model_type: str, layers: int, width: int, heads: int, vocabulary: int) -> dict[str, Any]:
    return config(
        model_type,
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=514,
    )


def gpt2(layers: int, width: int, heads: int, vocabulary: int) -> dict[str, Any]:
    return config("gpt2", vocab_size=vocabulary, n_embd=width, n_layer=layers, n_head=heads, n_positions=1024)


def vit(layers: int, width: int, heads: int, pixels: int, patch: int) -> dict[str, Any]:
    return {
        "model_type": "vit",
        "image_size": pixels,
        "patch_size": patch,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "num_labels": 10,
    }


T5 = {"d_kv": 32, "decoder_start_token_id": 0}
TEXTS = {"dataset": "texts.jsonl"}
"""Paragraphs of Python's documentation, from a few words to thousands."""

TABLES: dict[str, dict[str, Any]] = {
    "llama-192": {"model": llama(6, 192, 6, 16000), "global_batch_size": 16, "sequence_length": 192},
    "llama-long": {"model": llama(2, 128, 4, 2000), "global_batch_size": 16, "sequence_length": 1024},
    "llama-256": {"model": llama(8, 256, 8, 32000), "global_batch_size": 8, "sequence_length": 256},
    "gpt2-tiny": {"model": gpt2(2, 64, 4, 500), "global_batch_size": 64, "sequence_length": 32},
    "gpt2-vocabulary": {"model": gpt2(2, 128, 4, 50000), "global_batch_size": 32, "sequence_length": 64},
    "gpt2-texts": {
        "model": gpt2(4, 192, 6, 4000),
        "global_batch_size": 16,
        "sequence_length": 128,
        "task": "causal-lm",
        **TEXTS,
    },
    "bert-deep": {"model": encoder("bert", 12, 128, 4, 5000), "global_batch_size": 32, "sequence_length": 64},
    "bert-wide": {"model": encoder("bert", 3, 512, 8, 10000), "global_batch_size": 16, "sequence_length": 128},
    "bert-texts": {
        "model": encoder("bert", 4, 192, 6, 8000),
        "global_batch_size": 32,
        "sequence_length": 256,
        "task": "sequence-classification",
        **TEXTS,
    },
    "roberta-short": {"model": encoder("roberta", 6, 256, 8, 30000), "global_batch_size": 64, "sequence_length": 32},
    "t5-small": {
        "model": config("t5", vocab_size=3000, d_model=192, d_ff=768, num_layers=3, num_heads=6, **T5),
        "global_batch_size": 32,
        "sequence_length": 64,
    },
    "t5-wide": {
        "model": config("t5", vocab_size=20000, d_model=320, d_ff=1280, num_layers=2, num_heads=10, **T5),
        "global_batch_size": 16,
        "sequence_length": 128,
    },
    "vit-96": {"model": vit(6, 192, 6, 96, 12), "global_batch_size": 64},
    "vit-photographs": {"model": vit(4, 128, 4, 112, 16), "global_batch_size": 32, "dataset": "photographs"},
    "mixtral": {
        "model": llama(3, 128, 4, 6000)
        | {"model_type": "mixtral", "intermediate_size": 352, "num_local_experts": 8, "num_experts_per_tok": 2},
        "global_batch_size": 32,
        "sequence_length": 128,
    },
    "llama-lora": {
        "model": llama(4, 256, 8, 12000),
        "global_batch_size": 32,
        "sequence_length": 128,
        "parameters": "  lora: [16]\n  lora_targets: [all_linear]\n",
    },
}
"""Tables of different scale, by what is asked for: micro-steps of 1 ms to some seconds. model: fields of its config; parameters:
of the space beside SPACE's."""

SPACE = """
description: what a table holds
parameters:
  micro_batch_size: divisors
  checkpointing: [none, full]
  precision: [fp32, bf16]
  optimizer: [adamw_torch, adamw_torch_fused, adamw_bnb_8bit, adafactor]
  workers: [0, 2]
"""
QUIET = {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
PAGES = {"MALLOC_MMAP_THRESHOLD_": str(2**18), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Surroundings of every probe; of those of OF_PAGES also that tensors have mappings of their own, in large pages."""
OF_PAGES = ("bert-deep", "gpt2-tiny", "gpt2-vocabulary")
LIMIT = 8 * 2**30
TIMING = Timing(untimed_least=1, untimed_most=2, timed_least=2, timed_most=10, target=0.01, seconds=3.0)


def photographs(folder: Path, count: int = 64) -> Path:
    """A folder of large photographs in two classes, whose decoding costs a loader more than the model's step."""
    from sklearn.datasets import load_sample_images

    drawn = random.Random(0)
    for number in range(count):
        picture = Image.fromarray(np.asarray(load_sample_images().images[number % 2]))
        left, top = drawn.randrange(0, 100), drawn.randrange(0, 80)
        place = folder / ("temple", "flower")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        picture.crop((left, top, left + 512, top + 320)).save(place / f"{number:03d}.jpg", quality=90)
    return folder


def texts(path: Path) -> None:
    """Paragraphs of Python's documentation; the label: is it a sentence?"""
    from pydoc_data.topics import topics

    parts = (" ".join(part.split()) for text in topics.values() for part in text.split("\n\n"))
    rows = (json.dumps({"text": text, "label": int(text[-1] == ".")}) for text in parts if text)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def design(space: SearchSpace, slow_loader: bool) -> list[Configuration]:
    """Configurations to measure, see the module."""
    base, sizes = space.baseline.values, space.values["micro_batch_size"]
    least, middle, most = sizes[0], sizes[len(sizes) // 2], sizes[-1]
    spread = [(least, "bf16"), (middle, "fp32"), (most, "bf16")]

    def at(**values: Any) -> Configuration:
        return space.configuration({**base, "checkpointing": "none", "workers": 0, **values})

    computing = [
        at(micro_batch_size=size, checkpointing=checkpointing, precision=precision)
        for size in sizes
        for checkpointing in space.values["checkpointing"]
        for precision in space.values["precision"]
    ]
    fed = product(sizes, space.values["precision"]) if slow_loader else spread
    others = [at(micro_batch_size=size, precision=precision, workers=2) for size, precision in fed]
    others += [
        at(micro_batch_size=size, precision=precision, optimizer=optimizer)
        for size, precision in spread
        for optimizer in space.values["optimizer"]
    ]
    return list(dict.fromkeys([*computing, *others]))


def known_beforehand(
    host: ProbeHost, environment: Environment, workload: Workload, configurations: list[Configuration]
) -> dict[str, Any]:
    """As plain data: the estimated peak of each configuration, a micro-step's arithmetic, and the device's rates."""
    model = traced(host, workload, environment, configurations, {})
    estimates = [
        {"configuration": configuration.to_dict(), "bytes": model.peak(configuration).device_bytes}
        for configuration in configurations
    ]
    rates = known_rates(host, environment)
    return {"rates": rates, "arithmetic": model.arithmetic, "estimates": estimates}


def record(name: str, seconds: float, path: Path) -> bool:
    """Go on with a table; whether it is complete."""
    until = time.monotonic() + seconds
    os.environ.update(QUIET | (PAGES if name in OF_PAGES else {}))
    with ProbeHost() as host, tempfile.TemporaryDirectory() as scratch:
        asked_for = dict(TABLES[name])
        model = Path(scratch) / f"{name}.json"
        model.write_text(json.dumps(asked_for["model"]))
        asked_for["model"] = str(model)
        if data := asked_for.get("dataset"):
            asked_for["dataset"] = str(Path(scratch) / data)
            (photographs if data == "photographs" else texts)(Path(asked_for["dataset"]))
        space_file = Path(scratch) / "table.yaml"
        space_file.write_text(SPACE + asked_for.pop("parameters", ""))
        request = tuning_request(**asked_for, space=str(space_file), device="cpu")
        environment = Environment.from_dict(asked(host, "capabilities", {"device": "cpu"}))
        wanted = {"request": request.to_dict(), "cache": str(Path(scratch) / "cache")}
        workload = Workload.from_dict(asked(host, "prepare", wanted))
        space = build_space(request, environment, workload, {})
        if "lora" in space.values:  # with an adapter always, the baseline too
            space = narrowed(space, {"lora": space.values["lora"][0]})
            own = {**space.baseline.values, "lora": space.values["lora"][0]}
            space = dataclasses.replace(space, baseline=space.configuration(own))
        beforehand = path.with_suffix(".known.json")
        if not beforehand.exists():
            beforehand.write_text(json.dumps(known_beforehand(host, environment, workload, list(space))) + "\n")
        if not path.exists():
            head = {"request": TABLES[name], "environment": environment.to_dict(), "workload": workload.to_dict()}
            head["workload"] |= {"data": "", "data_identity": name, "source": name}
            del head["environment"]["training_argument_fields"], head["workload"]["model_config"]
            head["baseline"] = space.baseline.to_dict()
            head["values"] = {name: list(values) for name, values in space.values.items()}
            path.write_text(json.dumps(head) + "\n", encoding="utf-8")
        rows = [Row.read(line) for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        probe = LiveProbe(
            host,
            environment,
            workload,
            {},
            LIMIT,
            lambda slot: Path(scratch) / f"{slot.number}-{slot.round}",
            timings=(TIMING, TIMING),
        )
        order = design(space, slow_loader=asked_for.get("dataset", "").endswith("photographs"))
        random.Random(0).shuffle(order)
        for configuration in order:
            if any(row.configuration == configuration for row in rows):
                continue
            if time.monotonic() > until:
                return False
            row = Row(configuration, probe(configuration, ProbeOptions(Slot(len(rows)), 300.0)))
            assert row.measurement.outcome is Outcome.COMPLETED, (configuration, row.measurement.reason)
            rows.append(row)
            with path.open("a", encoding="utf-8") as file:
                file.write(row.line() + "\n")
        return True


def main() -> None:
    name, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 3600.0
    path = FOLDER / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = record(name, seconds, path)
    print(
        f"{name}: {len(path.read_text(encoding='utf-8').splitlines()) - 1} rows, {'complete' if done else 'not complete'}"
    )


if __name__ == "__main__":
    main()
