"""Claim of a report: what was found against the user's own settings, how sure it is, and what to do next."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from autotune.core import Interval, Trial
from autotune.core.errors import NothingFits
from autotune.core.no_answer import smallest_need, why_no_answer
from autotune.core.stop_reason import NOTHING_LEFT
from autotune.core.units import counted, format_bytes, format_seconds, three_digits
from autotune.judge.objective import speed
from autotune.judge.standing import is_open
from autotune.report.markdown import sentence
from autotune.report.snippets import larger_budget, search_command
from autotune.report.trial_text import (
    NOT_PROVEN,
    failures_text,
    interval_of,
    interval_text,
    is_same,
    outcome_text,
    range_text,
    setting_words,
    short_words,
    speed_text,
)
from autotune.study.result import SearchResult

SOLID_WIDTH = 0.2
"""Full width of a speed-up's 95% interval, as a share of it, up to which it is solid."""

SAME_PEAK = 0.02
"""Share by which two peaks differ at least for a headline to speak of it."""

SAME_SPEED = 0.05
"""Share by which the next best may be faster at most if the user's own settings are surely as good."""


class State(StrEnum):
    """Outcome of a search, as in JSON; each has a different next step."""

    IMPROVED = "improved"
    REFUTED = "refuted"
    KEPT = "kept"
    NOISY = "too_noisy"
    ALONE = "nothing_to_compare"
    NO_BASELINE = "baseline_does_not_run"
    NO_ANSWER = "no_answer"


@dataclass(frozen=True)
class Headline:
    """A headline with its state; in braces what the result fills in, and what begins with a space follows the speed-up."""

    state: State
    text: str


FASTER = Headline(State.IMPROVED, " as fast as {baseline}{memory}")
AS_FAST = Headline(State.IMPROVED, "As fast as {baseline}{memory}")
CHANGED = Headline(State.IMPROVED, " as fast as the least change of {baseline} that fits{memory}")
REFUTED = Headline(State.REFUTED, "Plain trainings were not faster than with {baseline}")
NOT_FASTER = Headline(State.KEPT, "No faster settings found{trials}")
OTHER_LOSSES = Headline(State.KEPT, "{Baseline} are kept: what is faster trains otherwise")
NOISY = Headline(State.NOISY, "Too noisy to tell whether anything is faster")
ALONE = Headline(State.ALONE, "Nothing to compare yet")
ONLY_BASELINE = Headline(State.ALONE, "Only {baseline} run here")
NO_BASELINE = Headline(State.NO_BASELINE, "{Baseline} cannot be compared; this configuration runs")
NOTHING_FITS = Headline(State.NO_ANSWER, "Nothing fits into {memory}")
NONE_MAY_WIN = Headline(State.NO_ANSWER, "No configuration may win")
NONE_COMPLETED = Headline(State.NO_ANSWER, "No configuration completed")
NOT_MEASURED = Headline(State.NO_ANSWER, "Nothing was measured")
HEADLINES = (
    *(FASTER, AS_FAST, CHANGED, REFUTED, NOT_FASTER, OTHER_LOSSES, NOISY, ALONE),
    *(ONLY_BASELINE, NO_BASELINE, NOTHING_FITS, NONE_MAY_WIN, NONE_COMPLETED, NOT_MEASURED),
)
"""All of them; that of an interrupted search has `INTERRUPTED` in front, that of what is not proven `NOT_PROVEN` at its end."""

INTERRUPTED = "Interrupted after {trials}"


class Verdict(StrEnum):
    """Certainty of a speed-up.

    Not proven: too few pairs of measurements with the user's own settings. Solid: its 95% interval is
    at most SOLID_WIDTH wide and does not hold 1, or is so narrow that both are as fast. Too noisy: the interval holds 1 and is
    wide, so that the user's settings are kept. Rough: all else.
    """

    SOLID = "solid"
    ROUGH = "rough"
    NOT_PROVEN = "not_proven"
    NOISY = "too_noisy"
    NONE = ""

    @property
    def text(self) -> str:
        """Text for people: `Not proven`."""
        return self.replace("_", " ").capitalize()


@dataclass(frozen=True)
class Claim:
    """The headline of a report and the sentences below it; plain text."""

    state: State
    text: str  # the headline of a search that came to its end, without `times` and a full stop
    times: str = ""  # how many times as fast, in front of it
    details: tuple[str, ...] = ()  # sentences
    less: str = ""  # by how much less memory, as the text has it
    gain: Interval | None = None  # speed over the baseline's
    verdict: Verdict = Verdict.NONE
    reason: str = ""  # of the verdict, a sentence
    advice: str = ""  # what to do next, a sentence
    command: str = ""  # that does it
    cut_off: str = ""  # `INTERRUPTED` of a search that did not come to its end

    @property
    def parts(self) -> tuple[str, str, str]:
        """The headline as how many times as fast, the rest, and the interval; of a search that was cut off the first is empty."""
        interval = f"95% interval {range_text(self.gain)}" if self.gain is not None else ""
        if not self.cut_off:
            return self.times.capitalize(), self.text, interval
        so_far = " so far" if self.state in (State.IMPROVED, State.KEPT) else ""
        return "", f"{self.cut_off}: {self.times}{self.text[:1].lower()}{self.text[1:]}{so_far}", interval

    @property
    def figures(self) -> tuple[str, ...]:
        """Parts of the headline that matter most."""
        return tuple(filter(None, (self.parts[0] or self.times, self.less)))

    @property
    def headline(self) -> str:
        """The first sentence, without a full stop."""
        return "".join(self.parts[:2])


def headline(result: SearchResult) -> str:
    """One sentence: the answer against the baseline, with its interval."""
    times, text, interval = claim_of(result).parts
    return f"{times}{text}{f' ({interval})' if interval else ''}."


def claim_fields(result: SearchResult) -> dict[str, Any]:
    """The claim for programs: its state, how sure it is, and the share that may be left to gain; None if unknown."""
    claim, left = claim_of(result), left_to_gain(result)
    return {
        "state": claim.state.value,
        "verdict": claim.verdict.value or None,
        "left_to_gain": left and left[0],
        "baseline_name": result.baseline_name,
        "headline_parts": list(claim.parts),
    }


def claim_of(result: SearchResult) -> Claim:
    """The claim that the numbers support."""
    best, baseline = result.best_trial, result.compared_trial
    if best is None:
        claim = _no_answer(result)
    elif baseline is None or result.measured_speedup is None:
        claim = _no_baseline(result, best)
    elif result.refuted is not None:
        claim = _refuted(result, result.refuted, baseline)
    elif not is_same(best, baseline):
        claim = _improved(result, best, baseline, verified_speedup(result) or result.measured_speedup)
    else:
        claim = _kept(result, baseline)
    if not _is_cut_off(result):
        return claim
    cut_off = INTERRUPTED.format(trials=counted(len(result.trials), "trial")) if result.trials else "Interrupted"
    if result.stop.advice:
        return replace(claim, cut_off=cut_off, advice=result.stop.advice, command="")
    advice = "The same command continues where it stopped."
    return replace(claim, cut_off=cut_off, advice=advice, command=search_command(result))


def _is_cut_off(result: SearchResult) -> bool:
    return not result.complete and not result.stop.is_end


def verification_of(result: SearchResult) -> Mapping[str, Any]:
    """Result of `autotune verify` for this answer.

    Empty if it measured nothing, or another answer before the search went on.
    """
    known, best = result.verification or {}, result.refuted or result.best_trial
    return known if best is not None and known.get("configuration") == best.configuration.to_dict() else {}


def verified_speedup(result: SearchResult) -> Interval | None:
    """The answer's speed-up by the plain trainings of `autotune verify`; None without any, and if they cannot tell."""
    verification = verification_of(result)
    is_known = verification.get("held") is not None
    return interval_of(verification.get("measured", {}), "speedup") if is_known else None


def verdict(gain: Interval, is_proven: bool, rival: str) -> tuple[Verdict, str]:
    """Certainty of a speed-up over the rival by the rules of `Verdict`, and the reason."""
    width = f"Its 95% interval is {range_text(gain)}"
    if not is_proven:
        few = f"Too few pairs of measurements with {rival}"
        return Verdict.NOT_PROVEN, f"{few}. {width}, by single probes."
    if is_open(gain):
        return Verdict.NOISY, f"{width}: it can be slower."
    if gain.relative_width > SOLID_WIDTH:
        return Verdict.ROUGH, f"{width}."
    return Verdict.SOLID, f"{width}, by pairs of measurements with {rival}."


# States ---------------------------------------------------------------------------------------------------------------


def _improved(result: SearchResult, best: Trial, baseline: Trial, gain: Interval) -> Claim:
    verified = verified_speedup(result) is not None
    is_proven = verified or result.standing.is_shown(best)
    rival = "it" if result.substitute else result.baseline_name
    sure, reason = verdict(gain, is_proven, rival)
    memory, times = _memory_text(best, baseline), times_text(gain, sure)
    kind = CHANGED if result.substitute else AS_FAST if gain.low <= 1 <= gain.high else FASTER
    memory = f", with {memory}" if memory else ""
    text = f"{_filled(kind, result, memory=memory)}{'' if is_proven else NOT_PROVEN}"
    how = _how_measured(result, best, rival) if is_proven else "By single probes"
    details = [f"{how}; 95% interval {range_text(gain)}."]
    now_s, was_s = best.final.step_time_s, baseline.final.step_time_s
    if verified:
        now_s, was_s = (verification_of(result)["measured"][side]["step_time_s"] for side in ("answer", "yours"))
    if gain.low > 1 and was_s and now_s:
        now, was = time_texts(now_s, was_s)
        hour = f"every hour of training becomes {'' if sure is Verdict.SOLID else 'about '}{60 / gain:.0f} minutes"
        details.insert(0, f"A step takes {now} instead of {was}: {hour}.")
    if result.substitute:
        details.insert(0, substitute_text(result))
    times, less = "" if kind is AS_FAST else times, _less_memory(best, baseline)
    return Claim(kind.state, text, times, tuple(details), less, gain, sure, reason)


def substitute_text(result: SearchResult) -> str:
    """The configuration with which the answer is compared in place of settings that do not fit; empty if these run."""
    baseline, change = result.baseline_trial, result.substitute
    if baseline is None or change is None:
        return ""
    before = baseline.configuration
    words = [
        setting_words(name, value) for name, value in change.configuration.settings if before.values.get(name) != value
    ]
    if (micro := change.configuration.micro_batch_size) != before.micro_batch_size:
        words.insert(0, f"micro-batch {micro}")
    return f"{_name(result)} do not fit ({outcome_text(baseline)}); compared with {' and '.join(words)}."


def _how_measured(result: SearchResult, best: Trial, rival: str) -> str:
    """Measurements behind a proven speed-up."""
    if verified_speedup(result) is not None:
        rounds = counted(len(verification_of(result)["rounds"]["answer"]), "round")
        return f"Verified by plain trainings in {rounds} alternating with {result.baseline_name}"
    pairs = counted(result.standing.pairs(best), "pair")
    return f"{pairs} of measurements, one of it and one of {rival} after the other"


def _refuted(result: SearchResult, trial: Trial, baseline: Trial) -> Claim:
    name = ", ".join(short_words(trial.configuration, baseline.configuration))
    gain = verified_speedup(result) or Interval(0.0, 0.0, 0.0)
    details = (
        f"Trial {trial.number} ({name}): {interval_text(gain)}.",
        f"{_own_text(result, baseline)} They are kept.",
    )
    sure = verdict(gain, is_proven=True, rival=result.baseline_name)[0]
    return Claim(REFUTED.state, _filled(REFUTED, result), details=details, verdict=sure, **_going_on(result))


def _filled(kind: Headline, result: SearchResult, **words: str) -> str:
    """The text of a headline. Defaults are named with their sizes and precision, which nobody has stated."""
    name, baseline = result.baseline_name, result.baseline_trial
    if not result.states_settings and baseline is not None and kind in (FASTER, AS_FAST):
        name = f"{name} ({', '.join(short_words(baseline.configuration, None)[:2])})"
    return kind.text.format(baseline=name, Baseline=_name(result), **words)


def _name(result: SearchResult) -> str:
    """Name of the baseline at the beginning of a sentence."""
    return result.baseline_name[0].upper() + result.baseline_name[1:]


def _own_text(result: SearchResult, baseline: Trial) -> str:
    return f"{_name(result)}: {speed_text(baseline)} samples/s, peak {format_bytes(baseline.peak_bytes)}."


def _kept(result: SearchResult, baseline: Trial) -> Claim:
    own, standing = _own_text(result, baseline), result.standing
    gains = {
        trial.number: standing.gain(trial) or Interval(0.0, 0.0, 0.0)
        for trial in result.trials
        if not is_same(trial, baseline) and trial.feasible and speed(trial.final, standing.objective)
    }
    details: tuple[str, ...]
    if not gains and len(result.trials) < 2:
        details = (f"Nothing else was measured. {own}",)
        return Claim(ALONE.state, ALONE.text, details=details, **_going_on(result))
    if not gains:
        details = (own, f"{counted(len(result.trials) - 1, 'other configuration')}: {failures_text(result.trials)}.")
        return Claim(ONLY_BASELINE.state, _filled(ONLY_BASELINE, result), details=details, **_going_on(result))
    others = [trial for trial in result.trials if trial.number in gains]
    differs = any(trial.disqualified_reason for trial, _ in result.disqualified)
    losing = [trial for trial, _ in result.disqualified]
    rival = losing[0] if losing else max(others, key=lambda trial: (standing.is_shown(trial), gains[trial.number]))
    gain = gains[rival.number]
    name = f"{rival.number} ({', '.join(short_words(rival.configuration, baseline.configuration))})"
    if result.disqualified and not differs:
        details = (f"Trial {name}: {interval_text(gain)}.", f"{own} They are kept.")
        next_step = (sentence(result.speedup_gap.advice if result.speedup_gap else ""), _firmer_command(result))
        return Claim(
            NOISY.state, NOISY.text, "", details, "", None, *verdict(gain, True, result.baseline_name), *next_step
        )
    kind = OTHER_LOSSES if differs else NOT_FASTER
    text = _filled(kind, result, trials="" if _is_cut_off(result) else f" in {counted(len(result.trials), 'trial')}")
    is_proven = standing.is_shown(rival)
    sure = Verdict.SOLID if is_proven and (gain.high <= 1 + SAME_SPEED or differs) else Verdict.ROUGH
    told = f"{interval_text(gain)}{'' if is_proven else NOT_PROVEN}"
    reason = f"The next best was {told}."
    details = (own, *([] if differs else [f"Next best: trial {name}, {told}."]))
    return Claim(kind.state, text, details=details, verdict=sure, reason=reason, **_going_on(result))


def _no_baseline(result: SearchResult, best: Trial) -> Claim:
    baseline = result.baseline_trial
    why = outcome_text(baseline) if baseline is not None and not baseline.feasible else result.speedup_reason
    answer = "The answer, the least change of them that fits," if best is result.substitute else "The answer"
    peak = f"{format_bytes(best.peak_bytes)} of {format_bytes(result.allowed_bytes)} allowed"
    details = (f"{_name(result)}: {why}.", f"{answer} trains {speed_text(best)} samples/s within {peak}.")
    return Claim(NO_BASELINE.state, _filled(NO_BASELINE, result), details=details)


def _no_answer(result: SearchResult) -> Claim:
    error = why_no_answer(result.trials, result.allowed_bytes)
    message, advice = error.message, error.advice
    text = NONE_COMPLETED.text if result.trials else NOT_MEASURED.text
    if isinstance(error, NothingFits):
        text = NOTHING_FITS.text.format(memory=format_bytes(result.allowed_bytes))
        message = sentence(smallest_need(result.trials))
    elif any(trial.disqualified_reason for trial in result.trials):
        text = NONE_MAY_WIN.text
    return Claim(State.NO_ANSWER, text, details=(message,), advice=advice)


# Texts ----------------------------------------------------------------------------------------------------------------


def times_text(gain: float, sure: Verdict) -> str:
    """`1.46x`; `about 1.5x` of what is not solid."""
    return f"{gain:.2f}x" if sure is Verdict.SOLID else f"about {gain:.1f}x"


def gain_words(state: State) -> str:
    """Words of a table's cell instead of a speed-up."""
    return {State.KEPT: "none found", State.NOISY: "cannot tell", State.REFUTED: "refuted"}.get(state, "-")


def _memory_text(best: Trial, baseline: Trial) -> str:
    """`24% less memory`, `2.3x the memory`; empty if both need about the same."""
    if not best.peak_bytes or not baseline.peak_bytes:
        return ""
    share = best.peak_bytes / baseline.peak_bytes
    if abs(share - 1) < SAME_PEAK:
        return ""
    if less := _less_memory(best, baseline):
        return f"{less} memory"
    return f"{share:.1f}x the memory" if share >= 2 else f"{share - 1:.0%} more memory"


def _less_memory(best: Trial, baseline: Trial) -> str:
    """`24% less`; empty if both need about the same, or the answer more."""
    share = (best.peak_bytes or 0) / baseline.peak_bytes if best.peak_bytes and baseline.peak_bytes else 1.0
    return f"{1 - share:.0%} less" if share <= 1 - SAME_PEAK else ""


def time_texts(*seconds: float) -> list[str]:
    """Times in the same unit: `["0.94 s", "1.36 s"]`, `["306 ms", "399 ms"]`, `["3 min 20 s"]`."""
    if max(seconds) >= 100:
        return [format_seconds(each) for each in seconds]
    if max(seconds) >= 1:
        return [f"{each:.2f} s" for each in seconds]
    return [f"{three_digits(1000 * each)} ms" for each in seconds]


def left_to_gain(result: SearchResult) -> tuple[float, int] | None:
    """(share by which untested configurations can still beat the answer, their number) at the end.

    None if unknown, and if the reason why the search ended says it.
    """
    if not result.prospects or result.stop.kind in NOTHING_LEFT:
        return None
    gap = result.prospects[max(result.prospects)]
    return (max(0.0, gap.max_gain_if_fits), gap.untried) if gap.untried and gap.max_gain_if_fits < 10 else None


def _going_on(result: SearchResult) -> dict[str, Any]:
    """Advice and command for a search that left something to gain."""
    left = left_to_gain(result)
    if result.stop.kind in NOTHING_LEFT or (left is not None and left[0] <= result.request.margin):
        return {}
    command = search_command(result, **larger_budget(result))
    return {"advice": "To search on (what was measured is kept):", "command": command} if command else {}


def _firmer_command(result: SearchResult) -> str:
    """The search with as many pairs as would tell; empty if that is unknown."""
    rounds = result.speedup_gap and result.speedup_gap.rounds
    longer = {"timeout": 2 * result.request.timeout_s} if result.request.timeout_s else {}
    return search_command(result, confirmation_rounds=rounds, **longer) if rounds else ""
