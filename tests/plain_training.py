"""A training script as anyone would write it: it knows torch and transformers, and reads the answer's files.

plain_training.py FOLDER LIMIT_BYTES SECONDS: FOLDER holds best_training_arguments.json, best_model_arguments.json and
request.json (for the model's config). Trains a causal language model on random tokens under RLIMIT_DATA and prints what
it got as one JSON line. Imports no autotune.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments


def status(name: str) -> int:
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024


class RandomTokens(torch.utils.data.Dataset):
    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        self.ids = torch.randint(1, vocabulary, (512, length), generator=torch.Generator().manual_seed(7))
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.ids[index % len(self.ids)]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class Clock(TrainerCallback):
    """Ends after some seconds of steps; the first few do not count."""

    def __init__(self, seconds: float, untimed: int = 5) -> None:
        self.seconds, self.untimed, self.ends = seconds, untimed, []

    def on_train_begin(self, args, state, control, **kwargs):
        self.ends = []

    def on_step_end(self, args, state, control, **kwargs):
        self.ends.append(time.perf_counter())
        if len(self.ends) > self.untimed + 3 and self.ends[-1] - self.ends[self.untimed] > self.seconds:
            control.should_training_stop = True


def main() -> None:
    folder, limit, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    resident = status("VmRSS")
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + limit, resource.RLIM_INFINITY))
    workload = json.loads((folder / "request.json").read_text())["workload"]
    tuned = json.loads((folder / "best_training_arguments.json").read_text())
    config = AutoConfig.for_model(**workload["model_config"])
    chosen = json.loads((folder / "best_model_arguments.json").read_text())
    model = AutoModelForCausalLM.from_config(config, **chosen)
    batch = tuned["per_device_train_batch_size"] * tuned["gradient_accumulation_steps"]
    with tempfile.TemporaryDirectory() as output:
        arguments = TrainingArguments(
            output_dir=output, **tuned, max_steps=1000, save_strategy="no", report_to="none", disable_tqdm=True
        )
        clock = Clock(seconds)
        data = RandomTokens(batch * 1000, workload["sequence_length"], config.vocab_size)
        trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=[clock])
        trainer.train()
    # What was really trained: auto_find_batch_size changes the batch behind the arguments.
    batch = trainer._train_batch_size * arguments.gradient_accumulation_steps
    steps = len(clock.ends) - 1 - clock.untimed
    took = clock.ends[-1] - clock.ends[clock.untimed]
    got = {"samples_per_second": batch * steps / took, "steps": steps, "global_batch_size": batch}
    print(json.dumps(got | {"peak_bytes": status("VmHWM") - resident, "imports_autotune": "autotune" in sys.modules}))


if __name__ == "__main__":
    main()
