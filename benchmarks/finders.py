"""What people use today to find a batch size or more, each used as its own documentation shows; and ours.

finders.py NAME FOLDER: FOLDER holds what benchmarks/plain_training.py reads, and task.json. The finder runs in this process,
under the limit, and leaves found.json: its training arguments. Every training that it starts stands in attempts.jsonl,
and again when it ended well.

- accelerate: `find_executable_batch_size` around a plain loop with accumulation from the batch size that is left, as in
  accelerate's examples/by_feature/automatic_gradient_accumulation.py.
- auto_find_batch_size: the Trainer's argument, from the global batch size down (huggingface.co/docs/transformers,
  TrainingArguments).
- lightning: `Tuner(trainer).scale_batch_size(module)` with its defaults (lightning.ai/docs, Tuner: mode "power", 3 steps a
  size). The user then takes the largest divisor of the global batch size that is no larger, and accumulates.
- hyperparameter_search: the Trainer's, with Optuna (huggingface.co/docs/transformers/hpo_train), over all of our space that
  it can set: pairs that keep the global batch exact, optimizer, workers. Precision and checkpointing it cannot: a trial's
  values arrive after the arguments and the model were made. The objective is the speed by a callback's clock, because
  evaluation metrics hold none. `catch` is passed to `study.optimize`; else the first out-of-memory ends the study.
- optuna: TPE over the same space as ours, each trial the plain training script in a process of its own; a trial that fails
  is worth 0, as Optuna's developers advise (github.com/optuna/optuna/issues/2864).
- autotune: `autotune.search`, with nothing known of the device.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parent
sys.path.insert(0, str(BENCHMARKS))

Fields = dict[str, Any]
OPTIMIZERS = ["adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor"]
WORKERS = [0, 2, 4]
"""Settings of search_spaces/default.yaml that a CPU has beside micro-batch, checkpointing and bf16."""


@dataclass(frozen=True)
class Task:
    """The same work for every finder. trials, steps: of a search, and of each training that only tries."""

    folder: Path
    model: str
    kind: str
    sequence_length: int
    global_batch_size: int
    limit_bytes: int
    trials: int
    steps: int

    @classmethod
    def read(cls, folder: Path) -> "Task":
        return cls(folder, **json.loads((folder / "task.json").read_text()))

    @property
    def divisors(self) -> list[int]:
        return [size for size in range(1, self.global_batch_size + 1) if self.global_batch_size % size == 0]

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
        for batch in islice(loader, task.steps * accumulation):
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
        task.tell(done=batch_size)
        return sizes(batch_size, accumulation)

    return train()


def _trainer(task: Task, output: str, *callbacks: Any, **given: Any) -> Any:
    """A Trainer of a few steps; given: its model, and training arguments."""
    from plain_training import data_of
    from transformers import Trainer, TrainingArguments

    model = {name: given.pop(name) for name in ("model", "model_init") if name in given}
    arguments = TrainingArguments(
        output, max_steps=task.steps, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, **given
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
        optimizer = trial.suggest_categorical("optim", OPTIMIZERS)
        workers = trial.suggest_categorical("dataloader_num_workers", WORKERS)
        return {**task.exact(size), "optim": optimizer, "dataloader_num_workers": workers}

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

    def fields(trial: Any) -> Fields:
        return {
            **task.exact(trial.suggest_categorical("micro_batch_size", task.divisors)),
            "activation_checkpointing": trial.suggest_categorical("activation_checkpointing", [False, True]),
            "bf16": trial.suggest_categorical("bf16", [False, True]),
            "optim": trial.suggest_categorical("optim", OPTIMIZERS),
            "dataloader_num_workers": trial.suggest_categorical("dataloader_num_workers", WORKERS),
            "use_cpu": True,
        }

    def objective(trial: Any) -> float:
        chosen = fields(trial)
        trial.set_user_attr("fields", chosen)
        (task.folder / "best_training_arguments.json").write_text(json.dumps(chosen))
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
    study.optimize(objective, n_trials=task.trials)
    return study.best_trial.user_attrs["fields"]


def autotune(task: Task) -> Fields:
    import autotune as library

    model, data = task.model, {}
    if (task.folder / "texts.json").exists():
        from plain_training import data_of, model_of

        model, data = partial(model_of, task.folder), data_of(task.folder, 0)
    options = {"task": task.kind, "sequence_length": task.sequence_length, "device": "cpu", "n_trials": task.trials}
    options |= {"memory_limit": task.limit_bytes, "no_history": True, "output_dir": str(task.folder)}
    study = task.folder / "study"
    try:
        result = library.search(model, task.global_batch_size, study_name=study.name, **options, **data)
    finally:
        for order in sorted(study.rglob("order.json")):
            _tell_probe(task, order)
    told = result.to_dict()
    (task.folder / "promised.json").write_text(json.dumps({name: told[name] for name in ("best", "baseline")}))
    (task.folder / "best_model_arguments.json").write_text(json.dumps(told["model_arguments"]))
    return told["training_arguments"]


def _tell_probe(task: Task, order: Path) -> None:
    """A training of ours; comparisons of losses and the rehearsal leave no measurement, and count as ended well."""
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
