"""Numbers that decide what measurements say, by the module that reads them: what each decides, and its evidence or "Guess"."""

# claim.py --------------------------------------------------------------------------------------------------------

LOOKS = {2: 0.05, 3: 0.05, 6: 0.02, 12: 0.02}
"""Pairs after which a claim is looked at -> probability that its interval there does not hold the truth. Of searches in which all
configurations are equally fast at most one in twenty may claim a speed-up. Evidence: reports/equal.md for the probabilities; the
numbers of pairs are a guess."""

BESIDE = 3
"""Measurements are side by side if they begin at most this number of their durations apart. Evidence: reports/LOG.md, "One
policy": with five the interval covers 90 instead of 100 % on a machine that drifts by 10 %, and no measurement is saved."""

LEAST_NOISE = 1e-3
"""Least standard deviation of a speed's logarithm that measurements are believed to have: two pairs may agree by chance, and the
steps within one measurement may be as regular as their clock. Guess."""

# dominance.py ----------------------------------------------------------------------------------------------------

SAME_CRASHES = 3
"""Crashes after which a value that never completed is probed no more. Guess."""

SAME_SHAPES = 2
"""Crashes that differ in numbers alone and are about shapes, after which a micro-batch size that met one is probed no more.
Guess."""

# observation.py --------------------------------------------------------------------------------------------------

WITHOUT_INTERVAL = 0.5
"""Noise of a speed without an interval, as of a single step: standard deviation of its logarithm. Guess."""

# standing.py -----------------------------------------------------------------------------------------------------

SAME_MEMORY = 0.05
"""Peaks that differ by less than this share are not a reason to take the slower of two. Evidence: reports/LOG.md, "What was tried
and did not work": peaks of two processes of one training differ by 1 to 7 % on a CPU."""

SAME_SPEED = 0.01
"""Speeds that differ by less than this share count as equal, and such a gain is not worth a measurement (--margin). Guess: a
preference rather than a property of machines."""

EACH_CHANGE = 0.003
"""Share of the speed that each changed setting has to win. Evidence: reports/LOG.md, "One policy": the fewest changes of all that
look equal lost 1.1 % in every search on two recorded tables, and at 2 % noise 0.2 % on average."""

PROCESSES_DIFFER = 0.03
"""Standard deviation of the logarithm of the speeds of two processes of one configuration, which the steps within a single
measurement do not show. Evidence: reports/LOG.md, "What was tried and did not work": 3 to 13 % on one thread of a CPU."""

SPEED_UP_WIDTH = 0.1
"""Full width of the speed-up's 95 % interval, as a share of it, up to which it tells that a configuration is as fast; a wider
one that holds 1 tells neither that a configuration is faster nor that it is as fast. Evidence: reports/LOG.md, "What was tried
and did not work": each speed within 2 % took every round that was allowed, and intervals too wide to tell passed as equality."""

MAX_DISPLAY_WIDTH = 0.5
"""Full width of a speed-up's 95 % interval, as a share of it, up to which a search that runs shows the speed-up. Guess."""

# substitute.py ---------------------------------------------------------------------------------------------------

MOST_TRIED = 3
"""Substitutes that are probed at most. Guess."""
