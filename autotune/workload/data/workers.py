"""Workers of data loaders: whether the user's process can start them."""

import multiprocessing
import pickle
from collections.abc import Mapping
from typing import Any


class Sink:
    """A file that keeps nothing, for pickling that only shows whether it can be done."""

    def write(self, data: Any) -> int:
        return len(data)


def why_no_workers(parts: Mapping[str, Any] | None) -> str:
    """Reason why this process cannot start workers with these parts of a loader, by name; empty if it can.

    A fork needs nothing to be sent; what is sent goes by the plain pickle. parts: None if a function builds them in each trial.
    """
    # The default method is not asked for: that would set it.
    method = multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method == "fork":
        return ""
    how = f"your process starts workers by {method}, and"
    if parts is None:
        return f"{how} what the function builds is not known to it"
    from autotune.workload.hub import first_line  # loads huggingface_hub

    for name, part in parts.items():
        try:
            pickle.Pickler(Sink()).dump(part)
        except Exception as error:  # whatever an object's pickling raises
            return f"{how} the {name} cannot be pickled: {first_line(error)}"
    return ""
