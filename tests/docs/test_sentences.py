"""Sentences of the documentation are short."""

from statistics import fmean

import pytest

from tests.docs.pages import PAGES, docs_module

CHECK = docs_module("check_sentences")


def test_what_counts_as_a_sentence() -> None:
    page = "# Not this\n\nOne `a. b` two. Three\n[four](five.md).\n\n- six\n- 1.5 seven\n\n```sh\nnot this\n```\n| nor this |\n"
    assert [" ".join(words) for words in CHECK.sentences(page)] == ["One Code two.", "Three four.", "six", "1.5 seven"]


@pytest.mark.parametrize("page", PAGES)
def test_the_sentences_of_a_page_have_twenty_words_on_average(page: str) -> None:
    assert fmean(map(len, CHECK.sentences(PAGES[page]) or [[]])) <= CHECK.LONGEST_MEAN
