"""What torch compiled in this process, and where it keeps what it compiled."""

import sys
from typing import Any


def graphs_compiled() -> int:
    """Graphs that torch compiled so far, those compiled anew for another shape among them."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])
