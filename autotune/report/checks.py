"""Checks to read before relying on an answer, each with advice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from autotune.core.configuration import RANKS
from autotune.core.loss_curves import BASELINE, Numerics
from autotune.core.note import NoteKind
from autotune.core.paths import shown, study_word
from autotune.core.promise_verdict import PromiseVerdict
from autotune.core.trial import Trial
from autotune.core.units import counted, format_seconds
from autotune.core.warning import OF_THE_MACHINE, ResultWarning, WarningKind, merged
from autotune.judge.objective import pays_from
from autotune.report.claim import Claim, State, Verdict, claim_of, left_to_gain, verification_of
from autotune.report.evidence import loss_warning
from autotune.report.markdown import sentence
from autotune.report.snippets import WITHOUT_MASK, larger_budget, mask_lines, option_words
from autotune.report.trial_text import interval_text, is_same, setting_words, short_words
from autotune.space.settings import MICRO, SETTINGS, learning_differences
from autotune.space.settings.workers import SETTING as WORKERS
from autotune.study.result import SearchResult

OF_CERTAINTY = (
    WarningKind.WIDE_INTERVAL,
    WarningKind.FEW_STEPS,
    WarningKind.RECOMPILED,
    WarningKind.FASTER,
    WarningKind.SLOWER,
)
"""Warnings about how sure a number is."""


class Level(StrEnum):
    """Importance of a check, in the order in which checks are shown."""

    OK = "ok"
    WARN = "warn"
    NOTE = "note"


@dataclass(frozen=True)
class Check:
    """One thing to know; plain text, commands in backticks."""

    level: Level
    title: str  # a sentence
    text: str = ""  # sentences
    action: str = ""  # what to do, a sentence


def checks(result: SearchResult) -> list[Check]:
    """Passed checks, then warnings, then notes; empty if there is no answer."""
    best, baseline = result.best_trial, result.baseline_trial
    if best is None:
        return [_warning(warning) for warning in warnings(result)]
    claim = claim_of(result)
    found = [
        *_losses(result, best),
        *_sanity(result),
        *_verified(result),
        *_data(best, baseline, result.workload.no_workers),
        *_certainty(result, claim),
        *_warnings(result, claim),
        *_learned(result),
        *_seen(result),
        *_not_used(result, claim),
        *_tried(result, best),
        *_elsewhere(result, best),
        *_left(result, claim),
    ]
    return sorted(found, key=lambda check: [*Level].index(check.level))


def warnings(result: SearchResult) -> tuple[ResultWarning, ...]:
    """Reasons against trusting the result: warnings of the study, of the best trial, of the losses, then of the baseline.

    Warnings that differ only in their numbers are merged, with the range of the numbers.
    """
    best, baseline, losses = result.best_trial, result.baseline_trial, loss_warning(result)
    found = [*result.study_warnings, *(best.final.warnings if best else ()), *([losses] if losses else [])]
    if baseline and best and not is_same(baseline, best):
        kinds = {(warning.kind, warning.detail) for warning in found}
        found += [
            warning if (warning.kind, warning.detail) in kinds else replace(warning, of="baseline")
            for warning in baseline.final.warnings
        ]
    return merged(found)


def changed_learning(result: SearchResult) -> dict[str, str]:
    """Setting that changes numerics and differs between answer and baseline -> `from fp32 to bf16 (how it differs)`."""
    if result.best_trial is None or result.baseline_trial is None:
        return {}
    best, baseline = result.best_trial.configuration, result.baseline_trial.configuration
    values, before = best.values, baseline.values
    names = learning_differences(best, baseline)
    differences = {name: how.differs(values[name]) for name in names if (how := SETTINGS[name].learning)}
    return {
        name: f"from {before[name]} to {values[name]}{f' ({how})' if how else ''}" for name, how in differences.items()
    }


def gain_alone(result: SearchResult, name: str) -> str:
    """`, which alone is 1.5x as fast (trial 3)`; empty if no trial differs from the baseline in this setting alone."""
    baseline, best = result.baseline_trial, result.best_trial
    if baseline is None or best is None or baseline is not result.compared_trial:
        return ""
    wanted = {**baseline.configuration.values, name: best.configuration.values[name]}
    for trial in result.trials:
        gain = result.standing.gain(trial)
        if trial.configuration.values == wanted and not is_same(trial, best) and gain is not None:
            return f", which alone is {gain:.1f}x as fast (trial {trial.number})"
    return ""


def data_text(best: Trial, baseline: Trial | None) -> str:
    """Cost of waiting for data, of the answer or else of the user's settings; empty if neither waits for a tenth."""
    if best.final.input_bound:
        return f"A step waits for data {best.final.data_wait_share:.0%} of its time."
    if baseline is None or not baseline.final.input_bound:
        return ""
    text = f"The baseline waited for data {baseline.final.data_wait_share:.0%} of the time"
    workers, before = (trial.configuration.values.get("workers", 0) for trial in (best, baseline))
    if workers == before:
        return f"{text}; the answer {best.final.data_wait_share or 0:.0%}."
    return f"{text}; {setting_words('workers', workers)} reduced that to {best.final.data_wait_share or 0:.0%}."


def loss_values(numerics: Numerics, trial: Trial) -> str:
    """`8.42 against fp32's 8.40 over the last 15 of 30 steps, in 3 rounds (random weights)`."""
    difference = numerics.difference(trial.number)
    if difference is None:
        return ""
    own, reference = f"{difference.level + difference.loss:#.4g}", f"{difference.level:#.4g}"
    steps = f"the last {difference.steps // 2} of {difference.steps} steps, in {counted(difference.rounds, 'round')}"
    return f"{own} against {numerics.reference}'s {reference} over {steps} ({numerics.weights})"


# Checks ---------------------------------------------------------------------------------------------------------------


def _losses(result: SearchResult, best: Trial) -> list[Check]:
    numerics, reference = result.numerics, result.numerics.reference if result.numerics else "fp32"
    left_out = "losses" in result.left_out
    if numerics is None or numerics.why_unchecked(best.number):
        if best.number == 0 or (numerics is None and best.confirmed and not left_out):
            return []
        why = sentence(numerics.why_unchecked(best.number)) if numerics else ""
        again = "Run the same command again to do it." if left_out else "Compare the first losses of your run."
        return [Check(Level.WARN, f"Losses were not compared with {reference}'s.", why, again)]
    notes = "".join(f" {sentence(note.text)}" for note in numerics.notes)
    values = f"{loss_values(numerics, best)}.{notes}"
    if best.number == 0 and not numerics.flag(0):
        return []
    if flag := numerics.flag(best.number):
        keep = "`--keep-numerics` searches without such changes."
        return [Check(Level.WARN, f"Losses differ from {reference}'s.", f"{sentence(flag)}{notes}", keep)]
    difference = numerics.difference(best.number)
    if difference is not None and not difference.is_sensitive:
        text = f"{values} The loss fell too little to show a training that learns nothing."
        return [Check(Level.WARN, "Too few steps to compare losses.", text, "Watch the first steps of your run.")]
    again = "Run the same command again to compare them with fp32's." if left_out and reference == BASELINE else ""
    return [Check(Level.OK, f"Losses match {reference}'s.", values, again)]


def _sanity(result: SearchResult) -> list[Check]:
    sanity = result.sanity_check
    lines = " ".join(map(sentence, sanity.lines())) if sanity else ""
    if sanity is None or not lines:
        return []
    if sanity.problems:
        return [Check(Level.WARN, "Evaluating or saving fails.", lines, "Try both before a long run.")]
    if sanity.keeps_too_much:
        return [Check(Level.WARN, "Evaluation keeps more than fits.", lines)]
    if sanity.eval_batch_size and any(size > sanity.eval_batch_size for size in sanity.eval_batches_tried):
        return [Check(Level.WARN, "Evaluation needs a smaller batch.", lines)]
    parts = {"evaluates": not sanity.evaluation_unchecked and sanity.eval_batch_size, "saves": sanity.checkpoint_bytes}
    done = " and ".join(name for name, value in parts.items() if value)
    return [Check(Level.OK, f"It {done}.", lines) if done else Check(Level.NOTE, "Evaluation was not checked.", lines)]


def _verified(result: SearchResult) -> list[Check]:
    """The verdict of plain trainings with this answer."""
    if not (verification := verification_of(result)):
        return []
    verdict = PromiseVerdict.from_dict(verification["verdict"])
    level, title = {
        True: (Level.OK, "Verified by plain trainings."),
        False: (Level.WARN, "It did not hold in plain trainings."),
        None: (Level.NOTE, "Not verified yet."),
    }[verdict.held]
    return [Check(level, title, sentence(verdict.text), verdict.advice)]


def _data(best: Trial, baseline: Trial | None, no_workers: str) -> list[Check]:
    if not (text := data_text(best, baseline)):
        return []
    if best.final.input_bound:
        kept = baseline.measurement.kept if baseline else ()
        action = "Use more workers, or prepare"
        if any(each.setting == WORKERS.name for each in kept):
            action = "Prepare"
        elif no_workers:
            action = "Make it picklable for workers, or prepare"
        return [Check(Level.WARN, "It waits for data.", text, f"{action} samples beforehand.")]
    return [Check(Level.OK, "It no longer waits for data.", text)]


def _certainty(result: SearchResult, claim: Claim) -> list[Check]:
    if claim.verdict not in (Verdict.ROUGH, Verdict.NOT_PROVEN) or claim.gain is None:
        return []
    folder = result.folder  # a report shows no absolute one
    study = result.name if folder is None or Path(shown(folder)).is_absolute() else study_word(folder)
    action, turns = f"`autotune verify {study}` trains it for longer", f", in turns with {result.baseline_name}"
    if not result.is_verifiable:
        action, turns = "`autotune.PromiseCallback` in your training compares its speed", ""
    if claim.verdict is Verdict.NOT_PROVEN:
        return [Check(Level.WARN, "The speed-up is not proven.", claim.reason, f"{action}{turns}.")]
    return [Check(Level.WARN, "The speed-up is rough.", claim.reason, f"{action}; a quiet machine helps most.")]


def _warnings(result: SearchResult, claim: Claim) -> list[Check]:
    """The warnings of the study and its trials that no other check speaks of."""
    others = [warning for warning in warnings(result) if warning.kind is not WarningKind.LOSSES]
    disturbed = [warning.text for warning in others if warning.kind in OF_THE_MACHINE]
    unsure = [warning.text for warning in others if warning.kind in OF_CERTAINTY]
    found = []
    if disturbed:
        action = "Measure again on a quiet machine; that helps more than more trials."
        found.append(Check(Level.WARN, "The machine was disturbed.", " ".join(map(sentence, disturbed)), action))
    if unsure and claim.gain is None:
        action = "A quiet machine makes it surer, and so does `--confirmation-rounds 6`."
        found.append(Check(Level.WARN, "The speed is rough.", " ".join(map(sentence, unsure)), action))
    rest = [warning for warning in others if warning.kind not in (*OF_THE_MACHINE, *OF_CERTAINTY)]
    return [*found, *map(_warning, rest)]


def _warning(warning: ResultWarning) -> Check:
    return Check(Level.WARN, "Warning.", sentence(warning.text))


def _learned(result: SearchResult) -> list[Check]:
    changed = changed_learning(result)
    if not changed:
        return []
    names = [name.replace("_", " ") for name in changed]
    title = f"{' and '.join(names)} changed.".capitalize()
    hows = zip(names, [how + gain_alone(result, name) for name, how in changed.items()], strict=True)
    whose = "yours" if result.states_settings else "the Trainer's"
    text = sentence(", ".join(f"{name} {how}" if len(changed) > 1 else how for name, how in hows))
    return [Check(Level.NOTE, title, text, f"To keep {whose}, search again with `--keep-numerics`.")]


def _seen(result: SearchResult) -> list[Check]:
    """Settings whose other values would be another training."""
    notes = [note.text for note in result.notes if note.kind is NoteKind.KEPT]
    return [Check(Level.NOTE, "Seen in your training.", sentence(f"{text[:1].upper()}{text[1:]}")) for text in notes]


def _not_used(result: SearchResult, claim: Claim) -> list[Check]:
    """The fastest trial that could not win although it was faster than the answer."""
    baseline = result.baseline_trial
    if not result.disqualified or baseline is None or claim.state is State.NOISY:
        return []
    (trial, reason), others = result.disqualified[0], len(result.disqualified) - 1
    gain = result.standing.gain(trial)
    name = ", ".join(short_words(trial.configuration, baseline.configuration))
    text = f"Trial {trial.number} ({name}){f', {interval_text(gain)}' if gain else ''}: {reason}."
    more = f" {counted(others, 'more trial')} likewise." if others else ""
    is_of_losses = trial.disqualified_reason and all(trial.disqualified_reason != note.detail for note in result.notes)
    action = "`--allow-loss-difference` lets it win." if is_of_losses else ""
    return [Check(Level.NOTE, "A faster one is not used.", f"{text}{more}", action)]


def _tried(result: SearchResult, best: Trial) -> list[Check]:
    """Values that were tried and are no part of the answer: they were not shown to help."""
    kept, own = best.configuration.values, result.standing.trials[0].configuration.values
    tried = {
        (name, value)
        for trial in result.standing.able
        for name, value in trial.configuration.values.items()
        if value not in (kept.get(name), own.get(name))
    }
    sizes = sorted(int(value) for name, value in tried if name == MICRO)
    words = [setting_words(name, value) for name, value in sorted(tried, key=str) if name not in (MICRO, RANKS)]
    words = [*([f"micro-batches of {', '.join(map(str, sizes))}"] if sizes else []), *words]
    return [Check(Level.NOTE, "Tried and left out.", f"Not shown to help: {', '.join(words)}.")] if words else []


def _elsewhere(result: SearchResult, best: Trial) -> list[Check]:
    """Checks of what is not in the training arguments, or costs time at the start."""
    found = []
    if result.device_note:
        found.append(Check(Level.WARN, "Other GPUs are visible.", sentence(result.device_note)))
    if best.final.compile_s:
        found.append(Check(Level.NOTE, "It compiles first.", sentence(compiling_text(best, result.trials))))
    if mask_lines(result.best_setup.data_arguments):
        found.append(Check(Level.NOTE, "Batches change.", f"They are {WITHOUT_MASK}: take the collator too."))
    return found


def _left(result: SearchResult, claim: Claim) -> list[Check]:
    found = []
    left_out = [what for what in result.left_out if what not in ("losses", "further probes")]
    if left_out:
        text = f"There was no time for: {', '.join(left_out)}."
        found.append(Check(Level.NOTE, "Not everything was done.", text, "Run the same command again to do it."))
    left = left_to_gain(result)
    if left and left[0] > result.request.margin and claim.state is not State.ALONE:
        share = f"Up to {left[0]:.0%}, with 95% confidence"
        tried = f"{len(result.trials)} of {len(result.trials) + left[1]:,} configurations were tried"
        (budget,) = larger_budget(result).items()
        action = "" if claim.command else f"The same command with `{' '.join(option_words(*budget))}` continues."
        found.append(Check(Level.NOTE, "There may be more to gain.", f"{share}. {tried}.", action))
    return found


def compiling_text(best: Trial, trials: Sequence[Trial]) -> str:
    """Cost of compiling at a run's start, and the number of steps from which it pays."""
    text = f"takes {format_seconds(best.final.compile_s)} at the start"
    if best.final.training_steps:
        share = 1 - best.final.after_compiling
        text += f", {share:.1%} of the time of your {best.final.training_steps} steps"
    steps = pays_from(best, trials)
    return f"{text}; it pays from {steps} steps on" if steps else text
