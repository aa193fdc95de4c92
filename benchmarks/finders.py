"""What people use today to find a batch size or more, each used as its own documentation shows; and ours.

finders.py NAME FOLDER: FOLDER holds what benchmarks/plain_training.py reads, and task.json. The finder runs in this process,
under the limit, and leaves found.json: its training arguments. Every training that it starts stands in attempts.jsonl,
and again when it ended well.

- accelerate: `find_executable_batch_size` around a plain loop with accumulation from the batch size that is left, as in
  accelerate's examples/by_feature/automatic_gradient_accumulation.py.
- auto_find_batch_size: the Trainer's argument, from the global batch size down (huggingface.co/docs/transformers,
  TrainingArguments). These two work inside the training, and lower the size whenever memory runs out: over real data they train
  an epoch.
- lightning: `Tuner(trainer).scale_batch_size(module)` with its defaults (lightning.ai/docs, Tuner: mode "power", 3 steps a
  size). The user then takes the largest divisor of the global batch size that is no larger, and accumulates.
- hyperparameter_search: the Trainer's, with Optuna (huggingface.co/docs/transformers/hpo_train), over all of our space that
  it can set: pairs that keep the global batch exact, optimizer, workers. Precision and checkpointing it cannot: a trial's
  values arrive after the arguments and the model were made. The objective is the speed by a callback's clock, because
  evaluation metrics hold none. `catch` is passed to `study.optimize`; else the first out-of-memory ends the study.
- optuna: TPE over the same space as ours, each trial the plain training script in a process of its own; a trial that fails
  is worth 0, as Optuna's developers advise (github.com/optuna/optuna/issues/2864).
- autotune: `autotune.search`, with the model by its name, the data by their path, and nothing known of the device.

The last three search for the same number of seconds and, at the most, trials.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent
sys.path.insert(0, str(BENCHMARKS))

Fields = dict[str, Any]
SPACES: dict[str, dict[str, list[Any]]] = {
    "default": {
        "activation_checkpointing": [False, True],
        "precision": ["fp32", "bf16"],
        "optim": ["adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor"],
        "dataloader_num_workers": [0, 2, 4],
    },
    "lora": {
        "activation_checkpointing": [False, True],
        "precision": ["fp32", "bf16", "bf16_frozen"],
        "optim": ["adamw_torch", "adamw_torch_fused"],
    },
}
"""The settings of search_spaces/NAME.yaml that a CPU has and a task does not fix, beside the micro-batch."""


@dataclass(frozen=True)
class Task:
    """The same work for every finder.

    samples: of the data in the folder, 0 of random ones. space, fix: of `autotune search`. trials, search_s: of a search, at
    the most. steps: of each training that only tries.
    """

    folder: Path
    model: str
    kind: str
    sequence_length: int | None
    global_batch_size: int
    limit_bytes: int
    samples: int
    space: str
    fix: Fields
    trials: int
    search_s: int
    steps: int

    @classmethod
    def read(cls, folder: Path) -> "Task":
        return cls(folder, **json.loads((folder / "task.json").read_text()))

    @property
    def divisors(self) -> list[int]:
        return [size for size in range(1, self.global_batch_size + 1) if self.global_batch_size % size == 0]

    @property
    def whole_steps(self) -> int:
        """Steps of a training that is not a try: an epoch of the data."""
        return self.samples // self.global_batch_size or self.steps

    def exact(self, micro_batch_size: int) -> Fields:
        return sizes(micro_batch_size, self.global_batch_size // micro_batch_size)

    def tell(self, **line: Any) -> None:
        """Keep what happens as it happens: the process may die at the next."""
        with open(self.folder / "attempts.jsonl", "a") as attempts:
            attempts.write(json.dumps(line) + "\n")


def sizes(micro_batch_size: int, accumulation: int) -> Fields:
    return {"per_device_train_batch_size": micro_batch_size, "gradient_accumulation_steps": accumulation}


def accelerate(task: Task) -> Fields:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size
    from plain_training import data_of, hold_to, model_of

    hold_to(task.limit_bytes)
    accelerator = Accelerator(cpu=True)

    @find_executable_batch_size(starting_batch_size=task.global_batch_size)
    def train(batch_size: int) -> Fields:
        task.tell(begun=batch_size)
        accumulation = task.global_batch_size // batch_size
        accelerator.gradient_accumulation_steps = accumulation
        accelerator.free_memory()
        model = model_of(task.folder)
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, fused=True)
        data = data_of(task.folder, task.global_batch_size * 1000)
        loader = torch.utils.data.DataLoader(
            data["train_dataset"], batch_size=batch_size, shuffle=True, collate_fn=data.get("data_collator")
        )
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        model.train()
        for batch in islice(loader, task.whole_steps * accumulation):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
        task.tell(done=batch_size)
        return sizes(batch_size, accumulation)

    return train()


def _trainer(task: Task, output: str, *callbacks: Any, **given: Any) -> Any:
    """A Trainer of a few steps, unless the given training arguments say another number; given: its model too."""
    from plain_training import data_of
    from transformers import Trainer, TrainingArguments

    model = {name: given.pop(name) for name in ("model", "model_init") if name in given}
    given = {"max_steps": task.steps} | given
    arguments = TrainingArguments(
        output, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, **given
    )
    data = data_of(task.folder, task.global_batch_size * 1000)
    return Trainer(args=arguments, callbacks=list(callbacks), **model, **data)


def auto_find_batch_size(task: Task) -> Fields:
    from plain_training import hold_to, model_of
    from transformers import TrainerCallback

    class Told(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            task.tell(begun=state.train_batch_size)

    hold_to(task.limit_bytes)
    with tempfile.TemporaryDirectory() as output:
        given = {"auto_find_batch_size": True, **task.exact(task.global_batch_size)}
        given |= {"max_steps": -1, "num_train_epochs": 1} if task.samples else {}
        trainer = _trainer(task, output, Told(), model=model_of(task.folder), **given)
        trainer.train()
    found = trainer.state.train_batch_size
    task.tell(done=found)
    return sizes(found, trainer.args.gradient_accumulation_steps)


def lightning(task: Task) -> Fields:
    import lightning as library
    import torch
    from lightning.pytorch.tuner import Tuner
    from plain_training import data_of, hold_to, model_of

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 1
            self.model = model_of(task.folder)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=5e-5, fused=True)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.model(**batch).loss

        def train_dataloader(self) -> Any:
            data = data_of(task.folder, task.global_batch_size * 1000)
            collate = data.get("data_collator")
            return torch.utils.data.DataLoader(
                data["train_dataset"], batch_size=self.batch_size, shuffle=True, collate_fn=collate
            )

        def on_train_start(self) -> None:
            task.tell(begun=self.batch_size)

        def on_train_end(self) -> None:
            task.tell(done=self.batch_size)

    hold_to(task.limit_bytes)
    with tempfile.TemporaryDirectory() as output:
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = library.Trainer(accelerator="cpu", max_steps=1000, default_root_dir=output, **options)
        found = Tuner(trainer).scale_batch_size(Module())
    return task.exact(max(size for size in task.divisors if size <= found))


def hyperparameter_search(task: Task) -> Fields:
    import optuna
    from plain_training import Clock, hold_to, model_of

    class Speed(Clock):
        def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            task.tell(begun=args.per_device_train_batch_size)
            self.step_times = []
            super().on_train_begin(args, state, control, **rest)

    def space(trial: Any) -> Fields:
        size = trial.suggest_categorical("per_device_train_batch_size", task.divisors)
        others = {
            name: values for name, values in SPACES[task.space].items() if name in ("optim", "dataloader_num_workers")
        }
        return task.exact(size) | {name: trial.suggest_categorical(name, values) for name, values in others.items()}

    def objective(metrics: dict[str, float]) -> float:
        speed = task.global_batch_size * len(clock.timed) / sum(clock.timed)
        task.tell(done=speed)
        return speed

    hold_to(task.limit_bytes)
    clock = Speed(1e9, task.steps, 0, untimed=2)
    with tempfile.TemporaryDirectory() as output:
        trainer = _trainer(task, output, clock, model_init=lambda: model_of(task.folder))
        trainer.eval_dataset = [trainer.train_dataset[index] for index in range(8)]
        best = trainer.hyperparameter_search(
            hp_space=space,
            compute_objective=objective,
            n_trials=task.trials,
            timeout=task.search_s,
            direction="maximize",
            backend="optuna",
            sampler=optuna.samplers.TPESampler(seed=0),
            gc_after_trial=True,
            catch=(RuntimeError, MemoryError),
        )
    found = best.hyperparameters
    return found | task.exact(found["per_device_train_batch_size"])


def optuna(task: Task) -> Fields:
    import optuna as library

    def chosen(trial: Any) -> tuple[Fields, Fields]:
        """Its training arguments and the model's."""
        fields = task.exact(trial.suggest_categorical("micro_batch_size", task.divisors)) | {"use_cpu": True}
        fields |= {name: trial.suggest_categorical(name, values) for name, values in SPACES[task.space].items()}
        precision = fields.pop("precision")
        return fields | {"bf16": precision != "fp32"}, {"dtype": "bfloat16"} if precision == "bf16_frozen" else {}

    def objective(trial: Any) -> float:
        fields, model_arguments = chosen(trial)
        trial.set_user_attr("chosen", [fields, model_arguments])
        (task.folder / "best_training_arguments.json").write_text(json.dumps(fields))
        (task.folder / "best_model_arguments.json").write_text(json.dumps(model_arguments))
        task.tell(begun=trial.params["micro_batch_size"])
        script = [
            str(BENCHMARKS / "plain_training.py"),
            str(task.folder),
            str(task.limit_bytes),
            "1e9",
            str(task.steps // 2),
        ]
        done = subprocess.run([sys.executable, *script], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            return 0.0
        speed = json.loads(done.stdout.splitlines()[-1])["samples_per_second"]
        task.tell(done=speed)
        return speed

    study = library.create_study(direction="maximize", sampler=library.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=task.trials, timeout=task.search_s)
    fields, model_arguments = study.best_trial.user_attrs["chosen"]
    (task.folder / "best_model_arguments.json").write_text(json.dumps(model_arguments))
    return fields


def autotune(task: Task) -> Fields:
    import autotune as library

    options = {"task": task.kind, "sequence_length": task.sequence_length, "space": task.space, "fix": task.fix}
    options |= {
        "dataset": next((path for name in ("texts.json", "images") if (path := task.folder / name).exists()), None)
    }
    options |= {"memory_limit": task.limit_bytes, "n_trials": task.trials, "timeout": task.search_s}
    options |= {"device": "cpu", "no_history": True, "output_dir": str(task.folder)}
    study = task.folder / "study"
    try:
        result = library.search(task.model, task.global_batch_size, study_name=study.name, **options)
    finally:
        for order in sorted(study.rglob("order.json")):
            _tell_probe(task, order)
    told = result.to_dict()
    promised = {name: told[name] for name in ("best", "baseline", "speedup", "speedup_low", "speedup_high")}
    (task.folder / "promised.json").write_text(json.dumps(promised))
    (task.folder / "best_model_arguments.json").write_text(json.dumps(told["model_arguments"]))
    if told["adapter"]:
        (task.folder / "best_adapter.json").write_text(json.dumps(told["adapter"]))
    return told["training_arguments"]


def _tell_probe(task: Task, order: Path) -> None:
    """A training of ours; comparisons of losses and the sanity check leave no measurement, and count as ended well."""
    name, answer = str(order.parent.name), order.with_name("measurement.json")
    task.tell(begun=name)
    if not answer.exists() or json.loads(answer.read_text())["outcome"] == "completed":
        task.tell(done=name)


FINDERS = {
    item.__name__: item
    for item in (accelerate, auto_find_batch_size, lightning, hyperparameter_search, optuna, autotune)
}


def main() -> None:
    task = Task.read(Path(sys.argv[2]))
    found = {"use_cpu": True} | FINDERS[sys.argv[1]](task)
    (task.folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
