"""JSON as plain data, from files that anybody may have written."""

import json
from typing import Any

TOO_DEEP = "it is nested too deeply"


def parse_json(text: str | bytes) -> Any:
    """Plain data; raises ValueError for what is no JSON, and for what is nested more deeply than can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
