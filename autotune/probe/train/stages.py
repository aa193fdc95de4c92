"""Stages of a training, and the peak of memory in each of them."""

from autotune.probe.order import STAGE
from autotune.probe.train.memory_limit import DeviceMemory, HostMemory
from autotune.probe.train.worst_batch import WORST_STEPS


class StageWatch:
    """Current stage of a training (build, data, forward, backward, optimizer): where a failure happens.

    Peaks by stage are read in the first steps: on the worst batch, if there is one. steps: those so far.
    """

    def __init__(self, memory: HostMemory | DeviceMemory) -> None:
        self.now, self.steps = "build", 0
        self._memory, self._entered = memory, set[str]()

    @property
    def reads_peaks(self) -> bool:
        return self.steps < WORST_STEPS

    def enter(self, stage: str) -> None:
        """Begin a stage; its first time is told in the log."""
        self.now = stage
        if stage not in self._entered:
            self._entered.add(stage)
            print(STAGE.format(stage), flush=True)
        if self.reads_peaks:
            self._memory.enter(stage)

    def end_step(self) -> None:
        """An optimizer step has ended."""
        if self.reads_peaks:
            self.steps += 1
            if not self.reads_peaks:
                self._memory.enter("")  # later peaks count, but for no stage
