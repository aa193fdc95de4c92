"""What the untried could still win, as plain data and back."""

import json
import math

from autotune.core.prospect import OptimalityGap


def test_it_comes_back_as_it_was_and_is_plain_json() -> None:
    for item in (OptimalityGap(0.5, 1.25, 17), OptimalityGap(math.inf, math.inf, 3), OptimalityGap(0.0, math.inf, 0)):
        text = json.dumps(item.to_dict(), allow_nan=False)
        assert OptimalityGap.from_dict(json.loads(text)) == item
