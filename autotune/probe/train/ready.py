"""Batches that a loader's workers have ready: while a step takes them, it waits for less than the loader needs for them."""

import contextlib
from typing import Any

DRAINED = 0.1
"""Share of the batches of the timed steps that may have come out of the queue, without new ones in their place."""

MOST_STARTS = 5
"""Starts of the timed steps: a queue that fills and empties by chance is taken as it is."""


class ReadyBatches:
    """Number of batches that are ready in a torch DataLoader with workers; 0 of any other, whose steps wait for all of them."""

    def __init__(self, loader: Any) -> None:
        self._iterator: Any = None
        inner = getattr(loader, "base_dataloader", loader)
        if (make := getattr(inner, "_get_iterator", None)) is None:
            return

        def made() -> Any:
            self._iterator = make()
            return self._iterator

        vars(inner)["_get_iterator"] = made

    def count(self) -> int:
        """Batches that have arrived out of their turn, and those in the queues of the workers and of pinned memory."""
        with contextlib.suppress(AttributeError, NotImplementedError):
            queues = {id(queue): queue for queue in (self._iterator._data_queue, self._iterator._worker_result_queue)}
            arrived = sum(len(task) == 2 for task in self._iterator._task_info.values())
            return arrived + sum(int(queue.qsize()) for queue in queues.values())
        return 0
