"""Workers of data loaders: how the user's process starts them, and what cannot be sent to them."""

import multiprocessing
import pickle
from collections import ChainMap
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import cloudpickle


class _Sink:
    def write(self, data: Any) -> int:
        return len(data)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """For a child, in which what the user's script defines is in no module."""

    def __init__(self, file: Any, protocol: int | None = None) -> None:
        registered: Any = reduction.ForkingPickler
        self.dispatch_table: Any = ChainMap(registered._extra_reducers, cloudpickle.Pickler.dispatch_table)
        super().__init__(file, protocol)  # reads the table


@dataclass(frozen=True)
class Workers:
    """start_method: of the user's process, empty: that of any. problem: reason why workers cannot be used there, or empty."""

    start_method: str = ""
    problem: str = ""

    @classmethod
    def of_this_process(cls, dataset: Any, collator: Any) -> "Workers":
        """For a loader of these. A fork needs nothing to be sent; what is sent goes by the plain pickle."""
        from autotune.workload.hub import first_line

        # The default method is not asked for: that would set it.
        method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
        for name, part in (("train_dataset", dataset), ("data_collator", collator)) if method != "fork" else ():
            try:
                pickle.Pickler(_Sink()).dump(part)
            except Exception as error:  # whatever an object's pickling raises
                return cls(
                    method,
                    f"your process starts workers by {method}, and the {name} cannot be pickled: {first_line(error)}",
                )
        return cls(method)

    def start_alike(self) -> None:
        """Make this process start workers as the user's does."""
        if self.start_method:
            multiprocessing.set_start_method(self.start_method, force=True)
        if self.start_method not in ("", "fork"):
            setattr(reduction, "dump", lambda part, file, protocol=None: _Pickler(file, protocol).dump(part))  # noqa: B010
