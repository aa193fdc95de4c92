"""The recorded search is a cast that asciinema plays."""

import json

from tests.docs.pages import ROOT


def test_events_follow_each_other_and_the_last_ones_show_the_answer() -> None:
    head, *events = map(
        json.loads, (ROOT / "docs" / "_static" / "search.cast").read_text(encoding="utf-8").splitlines()
    )
    assert (head["version"], head["width"]) == (2, 80)
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    shown = "".join(text for _, kind, text in events if kind == "o")
    assert shown.startswith("$ autotune search gpt2-mini --global-batch-size 16")
    assert "TrainingArguments(" in shown.rpartition("as fast as your settings")[2]
