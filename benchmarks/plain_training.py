"""A training script as anyone would write it: it knows torch and transformers, and reads the answer's files.

plain_training.py FOLDER LIMIT_BYTES SECONDS [STEPS [PAUSE_AFTER [UNTIMED]]]: FOLDER holds best_training_arguments.json,
best_model_arguments.json, best_adapter.json if the model gets an adapter, request.json (for the model's config, the task and the
sequence length), and texts.json or a folder images if there are any. Trains on them, else on random samples, under RLIMIT_DATA,
until the seconds or the steps are over, and prints what it got as one JSON line. Imports no autotune.

Without arguments: a training for each line of standard input, a JSON list of the same arguments, in a forked process of its own,
which need not load torch and transformers again. Prints its exit status, a JSON number, after what it printed.
"""

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image
from transformers import AutoConfig, Trainer, TrainerCallback, TrainingArguments

MODELS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
    "sequence-classification": "AutoModelForSequenceClassification",
}
POOL = 512


def status(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


class RandomSamples(torch.utils.data.Dataset):
    """As many samples as asked for, from a pool of random ones; all texts at full length."""

    def __init__(self, task: str, config, samples: int, length: int | None) -> None:
        drawn = torch.Generator().manual_seed(7)
        self.samples = samples
        if task == "image-classification":
            pixels = torch.randn(POOL, config.num_channels, config.image_size, config.image_size, generator=drawn)
            self.pool = {
                "pixel_values": pixels,
                "labels": torch.randint(config.num_labels, (POOL,), generator=drawn),
            }
            return
        ids = torch.randint(2, config.vocab_size, (POOL, length), generator=drawn)
        self.pool = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        if task == "masked-lm":
            self.pool["labels"] = ids.masked_fill(torch.rand(ids.shape, generator=drawn) >= 0.15, -100)
        if task == "seq2seq-lm":
            self.pool["labels"] = torch.randint(2, config.vocab_size, (POOL, length), generator=drawn)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index % POOL] for name, values in self.pool.items()}


class Images(torch.utils.data.Dataset):
    """A folder with a folder of image files for each class, decoded and resized whenever they are asked for."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        classes = sorted(place for place in folder.iterdir() if place.is_dir())
        self.samples = [(file, label) for label, place in enumerate(classes) for file in sorted(place.iterdir())]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, object]:
        file, label = self.samples[index]
        with Image.open(file) as image:
            small = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        values = torch.from_numpy(np.asarray(small, dtype=np.float32) / 127.5 - 1)
        return {"pixel_values": values.permute(2, 0, 1).contiguous(), "labels": label}


class Texts(torch.utils.data.Dataset):
    """Real texts of their own lengths: {"input_ids": [[...], ...], "labels": [...]}, a label a text or one a token."""

    def __init__(self, texts: dict[str, list]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts["labels"])

    def __getitem__(self, index: int) -> dict[str, object]:
        return {name: values[index] for name, values in self.texts.items()}


def padded(samples: list[dict]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest text; 0 pads, and -100 the labels of tokens."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    labels = [torch.tensor(sample["labels"]) for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(rows, batch_first=True),
        "attention_mask": pad([torch.ones_like(row) for row in rows], batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=-100) if labels[0].ndim else torch.stack(labels),
    }


def hold_to(limit_bytes: int) -> None:
    """From here on this process may ask for so much more memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + limit_bytes, resource.RLIM_INFINITY))


def config_of(folder: Path):
    return AutoConfig.for_model(**json.loads((folder / "request.json").read_text())["workload"]["model_config"])


def model_of(folder: Path):
    """The model that a folder asks for, with random weights, and with PEFT's adapter if the folder has one."""
    task = json.loads((folder / "request.json").read_text())["workload"]["task"]
    chosen = json.loads((folder / "best_model_arguments.json").read_text())
    model = getattr(transformers, MODELS[task]).from_config(config_of(folder), **chosen)
    adapter = folder / "best_adapter.json"
    if adapter.exists():
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(**json.loads(adapter.read_text())))
    return model


def data_of(folder: Path, samples: int) -> dict[str, object]:
    """The Trainer's arguments that bring the data: the folder's texts or images, else as many random samples."""
    if (folder / "texts.json").exists():
        texts = Texts(json.loads((folder / "texts.json").read_text()))
        return {"train_dataset": texts, "data_collator": padded}
    config = config_of(folder)
    if (folder / "images").exists():
        return {"train_dataset": Images(folder / "images", config.image_size)}
    workload = json.loads((folder / "request.json").read_text())["workload"]
    return {"train_dataset": RandomSamples(workload["task"], config, samples, workload["sequence_length"])}


class Clock(TrainerCallback):
    """Ends after some seconds or steps, of which the first few do not count; may stand still after every so many."""

    def __init__(self, seconds: float, steps: int, pause_after: int, untimed: int = 5) -> None:
        self.seconds, self.steps, self.pause_after, self.untimed = seconds, steps, pause_after, untimed
        self.step_times: list[float] = []

    @property
    def timed(self) -> list[float]:
        return self.step_times[self.untimed :]

    def on_train_begin(self, args, state, control, **kwargs):
        self.pause()

    def on_step_end(self, args, state, control, **kwargs):
        self.step_times.append(time.perf_counter() - self.begun)
        count = len(self.timed)
        if count >= self.steps or (count > 1 and sum(self.timed) > self.seconds):
            control.should_training_stop = True
        elif count > 0 and self.pause_after and count % self.pause_after == 0:
            self.pause()
        else:
            self.begun = time.perf_counter()

    def pause(self) -> None:
        """Say so and wait for a line on standard input: somebody else is measured meanwhile."""
        if self.pause_after:
            print("paused", flush=True)
            if not sys.stdin.readline():
                sys.exit("who measured is gone")
        self.begun = time.perf_counter()


def main(words: list[str]) -> None:
    folder, limit, seconds = Path(words[0]), int(words[1]), float(words[2])
    steps, pause_after, untimed = (int(word) for word in [*words[3:], *("1000", "0", "5")[len(words) - 3 :]])
    resident, files = status("VmRSS"), status("RssFile")
    hold_to(limit)
    tuned = json.loads((folder / "best_training_arguments.json").read_text())
    model = model_of(folder)
    batch = tuned["per_device_train_batch_size"] * tuned["gradient_accumulation_steps"]
    with tempfile.TemporaryDirectory() as output:
        most = max(1000, steps + 100)
        arguments = TrainingArguments(
            output_dir=output, **tuned, max_steps=most, save_strategy="no", report_to="none", disable_tqdm=True
        )
        clock = Clock(seconds, steps, pause_after, untimed)
        trainer = Trainer(model=model, args=arguments, callbacks=[clock], **data_of(folder, batch * most))
        trainer.train()
    # What was really trained: auto_find_batch_size changes the batch behind the arguments.
    batch = trainer._train_batch_size * arguments.gradient_accumulation_steps
    got = {
        "samples_per_second": batch * len(clock.timed) / sum(clock.timed),
        "steps": len(clock.timed),
        "global_batch_size": batch,
        "peak_bytes": status("VmHWM") - resident,
        "peak_file_bytes": max(0, status("RssFile") - files),
        "step_times_s": clock.step_times,
        "imports_autotune": "autotune" in sys.modules,
    }
    print(json.dumps(got))


def each_forked() -> None:
    """A training for each line of standard input, see the module."""
    for line in sys.stdin:
        if not (child := os.fork()):
            return main(json.loads(line))
        print(os.waitpid(child, 0)[1], flush=True)
    return None


if __name__ == "__main__":
    main(sys.argv[1:]) if sys.argv[1:] else each_forked()
