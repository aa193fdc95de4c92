"""Which settings decide about speed: their importance on the trials that fit."""

import warnings
from collections.abc import Mapping, Sequence

from autotune.core.configuration import Value
from autotune.core.trial import Trial
from autotune.report.figures.canvas import ACCENT, SMALL, Drawing, new_figure
from autotune.study.objective import speed
from autotune.study.result import SearchResult

LEAST = 8
"""Trials that fit from which on anything is said."""

LEAST_ABOVE, TENTH, HALF = 5, 0.1, 0.5
"""The best trials that are compared with all others: a tenth, but at least five (as Optuna advises), at most half."""

MOST = 12
"""Settings that are shown."""


def draw(result: SearchResult) -> Drawing | None:
    """PED-ANOVA's importance of the micro-batch size and each setting; None where too few trials fit or nothing differs."""
    values = {one.number: _value(one, result.request.objective) for one in result.trials if one.feasible}
    able = [one for one in result.trials if values.get(one.number)]
    names = _varied(able)
    if len(able) < LEAST or len(names) < 1:
        return None
    share = min(HALF, max(TENTH, LEAST_ABOVE / len(able)))
    found = importances(able, names, values, result.request.objective == "memory", share)
    if not found:
        return None
    shown = list(found.items())[:MOST]
    figure = new_figure(0.3 * len(shown) + 0.75)
    axes = figure.add_subplot()
    bars = axes.barh([name for name, _ in shown], [value for _, value in shown], 0.66, color=ACCENT)
    axes.bar_label(bars, [f"{value:.0%}" for _, value in shown], padding=4, fontsize=SMALL)
    axes.invert_yaxis()
    axes.set(xticks=[], xlabel="importance, shares of 100 %")
    axes.set_xlim(0, 1.15 * max(value for _, value in shown))
    axes.tick_params(axis="y", length=0)
    axes.spines["bottom"].set_visible(False)
    what = "leanest" if result.request.objective == "memory" else "fastest"
    said = f"How much each setting decides whether a trial is among the {what} {share:.0%}, by PED-ANOVA on {len(able)} trials "
    said += "that fit. It holds for these trials, and a search makes more of them where it expects to win."
    return Drawing("importance", "Which settings matter", said, figure)


def importances(
    able: Sequence[Trial], names: Sequence[str], values: Mapping[int, float], smallest: bool, share: float
) -> dict[str, float]:
    """Setting -> its share of 1, largest first; empty where nothing tells the best of these trials from the others.

    values: of each trial, by its number, of which the largest are best, or the smallest. share: of the trials, those that
    count as best. Nothing is drawn by chance: the same trials have the same importances.
    """
    import optuna
    from optuna.distributions import CategoricalDistribution
    from optuna.importance import PedAnovaImportanceEvaluator

    known = {name: list(dict.fromkeys(_text(one, name) for one in able)) for name in names}
    spaces = {name: CategoricalDistribution(values) for name, values in known.items()}
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(direction="minimize" if smallest else "maximize")
        study.add_trials(
            [
                optuna.trial.create_trial(
                    params={name: _text(one, name) for name in names},
                    distributions=spaces,
                    value=values[one.number],
                )
                for one in able
            ]
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
            found = optuna.importance.get_param_importances(study, evaluator=evaluator, normalize=False)
    finally:
        optuna.logging.set_verbosity(before)
    total = sum(found.values())
    return {name: value / total for name, value in found.items()} if total > 0 else {}


def _text(trial: Trial, name: str) -> str:
    """A value as a category of its own: True is not 1."""
    return repr(trial.configuration.values[name])


def _varied(able: Sequence[Trial]) -> list[str]:
    values: dict[str, set[tuple[type, Value]]] = {}
    for trial in able:
        for name, value in trial.configuration.values.items():
            values.setdefault(name, set()).add((type(value), value))
    return [
        name
        for name, known in values.items()
        if len(known) > 1 and all(name in one.configuration.values for one in able)
    ]


def _value(trial: Trial, objective: str) -> float:
    if objective == "memory":
        return float(trial.peak_bytes or 0)
    return float(speed(trial.final, objective) or 0.0)
