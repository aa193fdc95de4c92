"""Searches in every state, with what runners send and leave of a study."""

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.commands.result import TuningResult
from autotune.judge.standing import Standing
from autotune.service.records import Search
from autotune.service.roots import Roots
from autotune.service.runner import Events
from autotune.study.plan import Progress, ProgressKind
from tests.service.application import Service, make_app

REAL = Path(__file__).parents[1] / "data" / "studies" / "gpt2-mini-600MiB"
"""A real search on a CPU whose trial 4 ran out of memory."""

WANTED = {"model": "gpt2-mini", "global_batch_size": 48, "device": "cpu", "memory_limit": "600MiB"}
"""A request as it is stored."""

PROBLEM = {"type": "SearchFailed", "message": "The baseline crashed: mat1 and mat2.", "advice": "Read its log."}


def page_service(folder: Path) -> Service:
    """The API and the page, without a dispatcher."""
    return Service(make_app(folder, f"sqlite:///{folder / 'service.db'}", Roots()))


def sent(study: TuningResult, trials: int | None = None) -> list[dict[str, Any]]:
    """What the runner of this study sends while it runs, up to so many trials; of all of them the rounds too."""
    lines = io.StringIO()
    events = Events(lines)
    events.run = "1"
    events.watch(Progress(ProgressKind.PREPARING, Standing(), message="reading device, model and data"))
    first = tuple(replace(trial, confirmations=()) for trial in study.trials[:trials])
    for number, trial in enumerate(first):
        running = {"number": trial.number, "configuration": trial.configuration, "max_gain": 0.21}
        events.watch(
            Progress(ProgressKind.PROBING, Standing(first[:number]), probes_left=len(study.trials) - number, **running)
        )
    done = first if trials else tuple(study.trials)
    events.watch(Progress(ProgressKind.FINISHING, Standing(done), message="writing the report"))
    return [json.loads(line)["event"] for line in lines.getvalue().splitlines() if line]


def left(study: TuningResult, folder: Path) -> dict[str, bytes]:
    """The files that the runner of this study leaves."""
    saved = study.save(folder)
    logs = {f"trial-{trial.number}.log": b"MemoryError" for trial in study.trials if not trial.feasible}
    return {path.name: path.read_bytes() for path in saved.iterdir() if path.is_file()} | logs


def seed(
    service: Service, study: TuningResult, files: Mapping[str, bytes], name: str = "gpt2 nightly", owner: str = "anna"
) -> dict[str, str]:
    """A search in each state, and `fresh`, one that runs without a trial; name of the state -> id."""
    store, ids = service.store, {}
    answer = {key: value for key, value in study.to_dict().items() if key != "folder"}
    ends: dict[str, dict[str, Any]] = {
        "done": {
            "headline": answer["headline"],
            "statement": answer["statement"],
            "result": answer,
            "artifacts": files,
        },
        "nothing_fits": {"headline": "Nothing fits.", "problem": PROBLEM | {"message": "Nothing fits."}},
        "failed": {"headline": PROBLEM["message"], "problem": PROBLEM, "artifacts": {"trial-0.log": b"Traceback"}},
        "cancelled": {"headline": "The search was cancelled."},
    }

    def begun(events: list[dict[str, Any]]) -> Search:
        store.submit(owner, name, WANTED | {"model": study.workload.name})
        search = store.claim(["cpu"], 1000)
        assert search is not None
        store.add_events(search.id, search.attempt, events)
        return search

    for state, end in ends.items():
        search = begun(sent(study, None if state == "done" else 3))
        assert store.end(search.id, search.attempt, state, **end)
        ids[state] = search.id
    ids["running"], ids["fresh"] = begun(sent(study, 4)).id, begun(sent(study, 0)[:1]).id
    ids["queued"] = store.submit(owner, name, WANTED | {"fix": {"precision": "bf16"}, "n_trials": 30})[0].id
    return ids
