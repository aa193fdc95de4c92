"""Times and devices of measurements, and how much they err together: devices differ, and the speed of each one drifts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.core.measurement import JOIN
from autotune.judge.observation import Observation
from autotune.sampler.constants import DIFFER, DRIFT_PROBES
from autotune.sampler.gp import Numbers


@dataclass(frozen=True)
class Clock:
    """Start times and devices of m measurements."""

    started: Numbers  # (m,) seconds; NaN if that is not known
    spacing: float  # usual seconds of a measurement
    devices: tuple[frozenset[str], ...]  # (m,) names

    @classmethod
    def of(cls, measured: Sequence[Observation]) -> "Clock":
        started = np.array([math.nan if seen.started_s is None else seen.started_s for seen in measured], float)
        gaps = np.diff(np.sort(started[~np.isnan(started)]))
        lasted = [seen.seconds for seen in measured if seen.seconds] or [gap for gap in gaps if gap]
        return cls(started, float(np.median(lasted or [1.0])), tuple(seen.devices for seen in measured))

    @property
    def is_known(self) -> bool:
        """True if the measurements' times tell anything of how the devices' speed wanders."""
        return int((~np.isnan(self.started)).sum()) > 1

    def covariance(self, drift: float) -> Numbers:
        """(m, m) of what the measurements err by together: devices differ (DIFFER), and each one drifts."""
        return _covariance(*self._together, drift)

    def covariance_now(self, drift: float, at_s: float | None, device: str) -> tuple[Numbers, float]:
        """((m,), variance): the same of a measurement that begins then on this device, with each of these.

        at_s: None if its time is not known.
        """
        at, on = np.array([math.nan if at_s is None else at_s]), frozenset(device.split(JOIN))
        differs = DIFFER**2 / len(on) if len({*self.devices, on}) > 1 else 0.0
        return _covariance(*self._with(at, (on,)), drift)[:, 0], differs + (0.0 if at_s is None else drift**2)

    @cached_property
    def _together(self) -> tuple[Numbers, Numbers | None]:
        return self._with(self.started, self.devices)

    def _with(self, started: Numbers, devices: Sequence[frozenset[str]]) -> tuple[Numbers, Numbers | None]:
        """((m, n) correlations of an Ornstein-Uhlenbeck process, 0 if a time is NaN; (m, n) shares of devices, None if of one).

        Several devices together are as fast as on average.
        """
        apart = np.abs(self.started[:, None] - started[None, :])
        near = np.nan_to_num(np.exp(-apart / (DRIFT_PROBES * self.spacing)), nan=0.0)
        if len({*self.devices, *devices}) < 2:
            return near, None
        return near, np.array([[len(some & on) / (len(some) * len(on)) for on in devices] for some in self.devices])


def _covariance(near: Numbers, shared: Numbers | None, drift: float) -> Numbers:
    """(m, n) covariances of a device's speed and its drift."""
    return drift**2 * near if shared is None else shared * (drift**2 * near + DIFFER**2)
