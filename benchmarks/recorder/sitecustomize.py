"""Records every training of a process, for benchmarks/programs.py: the folder RECORDED gets a file for each.

The file has the training arguments that the Trainer's loop really has, and when its steps ended. It stands on PYTHONPATH.
"""

import importlib.abc
import itertools
import json
import os
import sys
import time

NAME, FOLDER = "transformers.trainer", os.environ.get("RECORDED", "")


class Finder(importlib.abc.MetaPathFinder):
    """Wraps the Trainer's loop once its module is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def executed(module):
            execute(module)
            wrap(module.Trainer)

        spec.loader.exec_module = executed
        return spec


def wrap(trainer):
    loop, numbers = trainer._inner_training_loop, itertools.count()

    def recorded(self, *args, **kwargs):
        from transformers import TrainerCallback

        ends = []

        class Ends(TrainerCallback):
            def on_step_end(self, *_, **__):
                ends.append(time.perf_counter())

        begun, ends_are_wanted = time.time(), os.environ.get("RECORDED_STEPS")
        facts = {"begun": begun, "trainer": type(self).__name__, "arguments": json.loads(self.args.to_json_string())}
        path = os.path.join(FOLDER, f"{begun:.3f}-{os.getpid()}-{next(numbers)}.json")
        write(path, facts)
        if ends_are_wanted:
            self.add_callback(Ends)
        try:
            return loop(self, *args, **kwargs)
        finally:
            if ends_are_wanted:
                write(path, facts | {"ends": ends})

    trainer._inner_training_loop = recorded


def write(path, facts):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(facts, file)


if FOLDER:
    sys.meta_path.insert(0, Finder())
