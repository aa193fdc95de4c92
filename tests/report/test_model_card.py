"""The section of a model card, in the card that huggingface_hub itself reads."""

import re
from dataclasses import replace

import pytest
from huggingface_hub import ModelCard

from autotune.report.model_card import BEGIN, END, with_section
from tests.makers import configuration, result, trial

CARD = f"""---
license: mit   # kept
tags: [text-generation,  mini]
---
# A model

Some *text* with trailing spaces.{3 * " "}

| a | b |
|---|---|
| 1 | 2 |
"""


@pytest.mark.parametrize("card", [CARD.replace("\n", "\r\n"), "# no front matter", "", CARD + "\n"])
def test_a_card_keeps_every_other_character_and_the_hub_reads_it_as_before(card: str) -> None:
    whole = result().model_card(card)
    assert whole.startswith(card)
    assert whole.count(BEGIN) == whole.count(END) == 1
    assert ("\r\n" in whole) == ("\r\n" in card)
    assert "\n" not in whole.replace("\r\n", "") or "\r\n" not in card
    read, before = ModelCard(whole, ignore_metadata_errors=False), ModelCard(card)
    assert read.data.to_dict() == before.data.to_dict()
    assert read.text.startswith(before.text)
    assert result().model_card() in read.text.replace("\r\n", "\n")


def test_a_second_time_changes_nothing_and_another_answer_replaces_the_section_alone() -> None:
    study = result()
    slower = result([trial(0, 10.0, confirmed=10.0), trial(1, 20.0, of=configuration(16), confirmed=20.0)])
    first = study.model_card(CARD) + "\n## What follows\n"
    assert study.model_card(first) == first
    second = slower.model_card(first)
    assert second == first.replace(study.model_card(), slower.model_card())
    assert "2.00x as fast" in second
    assert "4.00x as fast" not in second


def test_names_cannot_leave_their_place() -> None:
    study = result()
    name = f"a|b `x` [l](javascript:y) <script>alert(1)</script> {END} \\d *e*\n# title"
    section = replace(study, workload=replace(study.workload, name=name)).model_card()
    assert section.count(END) == 1
    assert "<script" not in section
    (row,) = [line for line in section.splitlines() if line.startswith("| Model |")]
    assert len(re.findall(r"(?<!\\)\|", row)) == 3
    assert not re.search(r"(?<!\\)[`*\[\]]", row)
    assert with_section(with_section(CARD, section), section) == with_section(CARD, section)
