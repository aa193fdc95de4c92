"""Numbers that decide what is measured, by the module that reads them: what each decides, and its evidence or "Guess".

The prior's own are in prior.py, fitted to tables. benchmarks/sensitivity.py replays searches with each one halved and doubled.
"""

from autotune.judge.constants import LOOKS
from autotune.space.settings import CostChange

# calibration.py --------------------------------------------------------------------------------------------------

MODELS_DIFFER = CostChange(0.05, 0.15, 4 * 2.0**20)
"""Standard deviation of a value's effect from model to model on one device, beyond what is expected of it: on a micro-step, the
optimizer's step and the peak. Evidence: reports/LOG.md, "Where constants come from": 3.5 %, 14 % and 3.3 MiB, rounded up."""

# candidates.py ---------------------------------------------------------------------------------------------------

POOL = 5000
"""Largest number of configurations to consider, of a space that is walked through too. Evidence: reports/decision_time.md: a
decision among them takes a small part of a measurement."""

ROOM = {1: 1 / 2, 2: 3 / 4}
"""Number of differing settings -> share of the pool that such neighbours may fill. Guess."""

BEST = 3
"""Best combinations of core settings with which the other settings are tried. Guess."""

# clock.py --------------------------------------------------------------------------------------------------------

DRIFTS = ((0.0, 0.4), (0.01, 0.2), (0.03, 0.2), (0.1, 0.2))
"""(standard deviation, prior weight) of the drift of a machine's speed in a search: none if idle, a tenth on a shared machine.
Evidence: reports/LOG.md, "What was tried and did not work", for the tenth: a machine wandered by 5 to 10 %; the weights are a
guess."""

DRIFT_PROBES = 10.0
"""Probes after which a machine's speed is hardly what it was: exp(-1) of what it differed by is left. Guess."""

DIFFER = 0.03
"""Standard deviation of the logarithm of speeds of devices of one kind. Evidence: Sinha et al., SC22, arXiv 2208.11035: cards of
one model vary by 8 % in the mean and by 22 % at most, from the slowest to the fastest."""

# cost_model.py ---------------------------------------------------------------------------------------------------

PROBE_START_S = 2.0
"""Seconds of a probe outside its steps, before any probe. Guess."""

PROBE_STEPS = 8.0
"""Steps of a probe, before any probe. Guess."""

LEAST_PEAK = 0.25
"""Share of its estimate below which no peak is predicted, whatever the slope says far from the measurements. Guess."""

WORTH = 0.1
"""Expected speed-up of a micro-step from which on a setting's value is among the first probes (FIRST_TRIED). Guess."""

# gains.py --------------------------------------------------------------------------------------------------------

RUN_S = 7200.0
"""Seconds of the training to tune for if its steps are not announced. Evidence: benchmarks/replay.py at a noise of 0.1: with one
hour, a tenth of which a proof takes, gains of up to a fifth were left unproven."""

FANTASY_NOISE = 0.05
"""Noise of the assumed result of a measurement that runs or is planned. Guess."""

REPEATS = (1, 2, 4)
"""Numbers of repeats that a measurement is judged by: one alone may tell nothing of what several do. Evidence: reports/LOG.md,
"One policy": eight made no difference."""

COMPARED = 4
"""Most measurements of one configuration that are made to tell which one is the fastest. Guess."""

OPTIMISM = 2.0
"""Standard deviations by which a configuration may be better than it is expected to be: by these the untried are ranked, and one
that is behind by more needs no comparison. Guess: 95 % of a normal distribution lie within."""

# optuna_samplers.py ----------------------------------------------------------------------------------------------

ANSWERED_IN_A_ROW = 200
"""Proposals in a row that earlier trials answer, after which everything counts as measured. Guess."""

# physics.py ------------------------------------------------------------------------------------------------------

P_AS_FAST = 0.25
"""Probability of being as fast from which on a configuration with fewer changes of the user's settings is worth its probe.
Guess."""

ASSUMED_SHARE = 0.1
"""Share of the allowed memory that is the estimate of every configuration without one. Guess."""

UNKNOWN_SHARE = 0.2
"""Standard deviation of peaks without an estimate, of all together and of what grows with the samples of a micro-batch, each as a
share of the allowed memory. Guess."""

# policy.py -------------------------------------------------------------------------------------------------------

P_FIT_CERTAIN = 0.95
"""Probability of fitting from which on a configuration is certain to fit. Until something fits, the likeliest is tried.
Evidence: reports/LOG.md, "Where constants come from"."""

P_FIT_LIKELY = 0.8
"""Probability of fitting from which on a configuration is likely to. Evidence: reports/LOG.md, "Where constants come from"."""

P_FIT_RISKY = 0.4
"""Probability of fitting from which on a configuration is tried as a risk, once something fits: running out of memory costs the
seconds of a probe, a slower configuration hours of training. Evidence: reports/LOG.md, "Where constants come from"."""

P_FIT_NEGLIGIBLE = 0.005
"""Probability of fitting below which a configuration is not considered for the bounds. Guess."""

RISK_DISCOUNT = (1.0, 0.3, 0.05)
"""Factors of the worth of what is certain to fit, likely to, and a risk: one that runs out of memory tells nothing of speed, and
disturbs whoever shares the device. Evidence: reports/LOG.md, "One policy"."""

RISKS = 2
"""Largest number of risky tries of a search. Evidence: reports/LOG.md, "Where constants come from"."""

FIRST_PROBES = 3
"""Probes before which nothing is concluded from a model that was fitted to them. Guess."""

FIRST_TRIED = 4
"""Probes, the baseline's among them, within which each setting that is expected to be worth much is tried if it is worth
its seconds, whatever other models showed: it may not hold for this one. Guess."""

PATIENCE = 6
"""Trials without one that is better by the margin after which a new one has to be expected to win as much: where configurations
do not differ, a search ends soon. Evidence: reports/equal.md: such a search ends after 8 to 11 trials."""

RIVALS = 100
"""Untried configurations with the largest possible gains that are compared, among the certain to fit, the likely to and the
others. Guess."""

CONFIDENCE = 0.95
"""Probability with which no untried configuration gains more than the bound. Guess: the usual one."""

COMPARING = 0.25
"""Seconds of comparisons, as a share of those of first measurements: what they do not tell apart is nearly as fast. Guess."""

MIN_COMPARE_SCORE = 0.1
"""Share of its seconds that a comparison has to be worth. Its gain counts a single rival and no later measurement, a lower
bound: it is worth several times that. Evidence: reports/LOG.md, "One policy"."""

# proof.py --------------------------------------------------------------------------------------------------------

MOST_BEGUN = 2 * max(LOOKS)
"""Rounds of the winner from which on no further pair of it is begun: where pairs fall apart a proof would not end. Guess."""

LEAST_POWER = 0.2
"""Probability of being shown from which on a proof is begun, or goes on to a further look. Guess."""

WIDE = 0.2
"""Full width of the interval up to which fewer than FIRM_PAIRS pairs are enough. Guess."""

FIRM_PAIRS = 3
"""Pairs from which on any interval above 1 is enough. Evidence: Student's t at 95 %, which is 12.7 of two pairs and 4.3 of
three."""

SLACK = 1.1
"""Seconds that a proof may take, as a multiple of the expected seconds. Guess."""

PROVING = 0.2
"""Share of a limited time that is kept for a proof until something is worth proving. Guess."""

# scales.py -------------------------------------------------------------------------------------------------------

REST_DOUBT = 0.004
"""Share that the prior's rest may leave out. Evidence: reports/LOG.md, "One policy": a rest that is believed too small ends a
search before its best was tried; the value is a guess, as large as the prior's own rest."""
