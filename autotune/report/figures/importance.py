"""Importance of settings for speed, on the trials that fit."""

import warnings
from collections.abc import Mapping, Sequence

from autotune.core.trial import Trial
from autotune.report.figures.canvas import ACCENT, SMALL, Drawing, new_figure
from autotune.study.objective import speed
from autotune.study.result import SearchResult

LEAST = 8
"""Trials that fit below which nothing is shown."""

LEAST_ABOVE, TENTH, HALF = 5, 0.1, 0.5
"""The best trials that are compared with all others: a tenth, but at least five (as Optuna advises), at most half."""

MOST = 12
"""Settings that are shown."""


def draw(result: SearchResult) -> Drawing | None:
    """PED-ANOVA's importance of the micro-batch size and each setting; None where too few trials fit or nothing differs."""
    objective = result.request.objective
    values = {trial.number: _value(trial, objective) for trial in result.trials if trial.feasible}
    trials = [trial for trial in result.trials if values.get(trial.number)]
    names = _varied(trials)
    if len(trials) < LEAST or not names:
        return None
    share = min(HALF, max(TENTH, LEAST_ABOVE / len(trials)))
    shown = dict(list(importances(trials, names, values, objective == "memory", share).items())[:MOST])
    if not shown:
        return None
    figure = new_figure(0.3 * len(shown) + 0.75)
    axes = figure.add_subplot()
    bars = axes.barh(list(shown), list(shown.values()), 0.66, color=ACCENT)
    axes.bar_label(bars, [f"{value:.0%}" for value in shown.values()], padding=4, fontsize=SMALL)
    axes.invert_yaxis()
    axes.set(xticks=[], xlabel="importance, shares of 100 %", xlim=(0, 1.15 * max(shown.values())))
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
    which = f"{'leanest' if objective == 'memory' else 'fastest'} {share:.0%}"
    caption = (
        f"How much each setting decides whether a trial is among the {which}, by PED-ANOVA on {len(trials)} trials that fit. "
        "It holds for these trials, and a search makes more of them where it expects to win."
    )
    return Drawing("importance", "Which settings matter", caption, figure)


def importances(
    trials: Sequence[Trial], names: Sequence[str], values: Mapping[int, float], smallest: bool, share: float
) -> dict[str, float]:
    """Setting -> its share of 1, largest first; empty where nothing separates the best of these trials from the others.

    values: of each trial, by its number, of which the largest are best, or the smallest. share: of the trials, those that
    count as best. Nothing is random: the same trials have the same importances.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.importance import PedAnovaImportanceEvaluator

    params = [{name: _category(trial, name) for name in names} for trial in trials]
    distributions = {name: CategoricalDistribution(list(dict.fromkeys(row[name] for row in params))) for name in names}
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="minimize" if smallest else "maximize")
        for trial, row in zip(trials, params, strict=True):
            study.add_trial(
                optuna.trial.create_trial(params=row, distributions=distributions, value=values[trial.number])
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
            by_name = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    finally:
        optuna.logging.set_verbosity(before)
    total = sum(by_name.values())
    return {name: value / total for name, value in by_name.items()} if total > 0 else {}


def _category(trial: Trial, name: str) -> str:
    """A value as a category of its own: True is not 1."""
    return repr(trial.configuration.values[name])


def _varied(trials: Sequence[Trial]) -> list[str]:
    """Settings of every trial that have more than one value."""
    names = dict.fromkeys(name for trial in trials for name in trial.configuration.values)
    shared = [name for name in names if all(name in trial.configuration.values for trial in trials)]
    return [name for name in shared if len({_category(trial, name) for trial in trials}) > 1]


def _value(trial: Trial, objective: str) -> float:
    if objective == "memory":
        return float(trial.peak_bytes or 0)
    return float(speed(trial.final, objective) or 0.0)
