"""Studies that are hard on a page: a large one, and one whose every name, reason and log would like to be markup."""

import itertools
from dataclasses import replace

from autotune.core.measurement import Outcome
from autotune.core.trial import Trial
from autotune.report.exports import Answer
from autotune.report.facts import Facts
from tests.makers import MIB, completed, configuration, ended, out_of_memory, result, trial

HOSTILE = "</script><script>document.title='ran'</script>{{ 7*7 }}{% if %}&amp;\"'<img src=x onerror=\"document.title='ran'\">"
"""Text that does something wherever it is not text."""


def large(trials: int = 500) -> Facts:
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
    return result(made).facts()


LOG = "\n".join(f'  File "trainer.py", line {line}, in training_step: a line of a traceback' for line in range(60))


def hostile() -> Facts:
    """The facts of a search of five trials that are full of markup, template and script."""
    slow, fast = configuration(8, optimizer=HOSTILE), configuration(16, precision=HOSTILE)
    trials = [
        trial(0, 10.0, of=slow, confirmed=10.0),
        Trial(1, fast, completed(fast, 40.0), (completed(fast, 40.0, observed_warnings=(HOSTILE,)),) * 2),
        Trial(2, slow, ended(Outcome.CRASHED, reason=HOSTILE, where=HOSTILE, log_tail=HOSTILE)),
        Trial(3, slow, ended(Outcome.UNSUPPORTED, reason=HOSTILE * 5)),
        trial(4, 5.0, of=slow, repeated_because=(HOSTILE,)),
    ]
    facts = result([trial(0), trial(1, 40.0, of=configuration(16))]).facts()
    return replace(
        facts,
        name=HOSTILE,
        trials=[replace(one, disqualified_reason=HOSTILE) if one.number == 4 else one for one in trials],
        best=trials[1],
        baseline=trials[0],
        stop_reason=HOSTILE,
        answer={"per_device_train_batch_size": 16, "run_name": HOSTILE, HOSTILE: {HOSTILE: [HOSTILE]}},
        model_answer={"dtype": HOSTILE},
        variables={"NAME": HOSTILE},
        model=HOSTILE,
        task=HOSTILE,
        device=HOSTILE,
        versions={HOSTILE: HOSTILE},
        data=HOSTILE,
        ruled_out=[HOSTILE],
        notes=[HOSTILE],
        device_note=HOSTILE,
        logs={2: HOSTILE},
        elsewhere=Answer({"run_name": HOSTILE}, {"dtype": HOSTILE}, model=HOSTILE),
        adapter={"r": HOSTILE},
        switches={HOSTILE: True},
        surroundings=[(HOSTILE, HOSTILE)],
    )
