"""Studies that are hard on a page: a large one, and one whose every name, reason and log would like to be markup."""

import itertools
from dataclasses import replace

from autotune.core import Outcome, Trial
from autotune.core.note import Note, NoteKind
from autotune.core.request import tuning_request
from autotune.core.stop_reason import StopKind, StopReason
from autotune.space.search_space import RuledOut
from autotune.space.settings.exclusion import Exclusion, ExclusionKind
from autotune.space.setup import TrainingSetup
from autotune.study.result import SearchResult
from tests.makers import MIB, completed, configuration, cpu, ended, out_of_memory, result, trial, warned, workload

HOSTILE = "</script><script>document.title='ran'</script>{{ 7*7 }}{% if %}&amp;\"'<img src=x onerror=\"document.title='ran'\">"
"""Text that does something wherever it is not text."""


def large(trials: int = 500) -> SearchResult:
    """The facts of a search of so many trials; every sixth ran out of memory, every twentieth crashed with a long log."""
    values = itertools.product((1, 2, 3, 4, 6, 8, 12, 16), ("none", "full"), ("fp32", "bf16"), (0, 2, 4), range(9))
    made: list[Trial] = []
    for number, (micro, checkpointing, precision, workers, turn) in zip(range(trials), values, strict=False):
        of = configuration(micro, checkpointing=checkpointing, precision=precision, workers=workers)
        if number % 6 == 5:
            made.append(Trial(number, of, out_of_memory(of)))
        elif number % 20 == 19:
            made.append(Trial(number, of, ended(Outcome.CRASHED, reason=f"RuntimeError: kernel {turn}", log_tail=LOG)))
        else:
            speed = 10 + micro + number % 7 + turn / 9
            confirmed = speed if number in (0, 1, 7) else None
            made.append(trial(number, speed, (100 + 40 * micro) * MIB, of=of, confirmed=confirmed))
    return result(made)


LOG = "\n".join(f'  File "trainer.py", line {line}, in training_step: a line of a traceback' for line in range(60))


def hostile() -> SearchResult:
    """The facts of a search of five trials that are full of markup, template and script."""
    slow, fast = configuration(8, optimizer=HOSTILE), configuration(16, precision=HOSTILE)
    trials = [
        trial(0, 10.0, of=slow, confirmed=10.0),
        Trial(1, fast, completed(fast, 40.0), (completed(fast, 40.0, observed_warnings=warned(HOSTILE)),) * 2),
        Trial(2, slow, ended(Outcome.CRASHED, reason=HOSTILE, where=HOSTILE, log_tail=HOSTILE)),
        Trial(3, slow, ended(Outcome.UNSUPPORTED, reason=HOSTILE * 5)),
        trial(4, 5.0, of=slow, repeated_because=warned(HOSTILE)),
    ]
    study = result(
        [*trials[:4], replace(trials[4], disqualified_reason=HOSTILE)],
        request=tuning_request("gpt2-mini", 48, device="cpu", study_name=None),
        workload=workload(name=HOSTILE, architecture=HOSTILE, text_source=HOSTILE),
        environment=cpu(device_name=HOSTILE, versions={HOSTILE: HOSTILE}),
        stop=StopReason(StopKind.FAILED, detail=HOSTILE),
        ruled_out=(RuledOut("precision", HOSTILE, Exclusion(ExclusionKind.TRIED, detail=HOSTILE)),),
        notes=(Note(NoteKind.COLUMNS, detail=HOSTILE),),
    )
    study = replace(study, request=replace(study.request, study_name=HOSTILE))
    vars(study)["best_setup"] = TrainingSetup(
        training_arguments={"per_device_train_batch_size": 16, "run_name": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE]}},
        model_arguments={"dtype": HOSTILE},
        adapter={"r": HOSTILE},
        switches={HOSTILE: True},
        process_environment={"NAME": HOSTILE},
    )
    return study
