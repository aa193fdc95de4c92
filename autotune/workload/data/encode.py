"""Tokenised samples of rows of text, for each task."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.workload.data.columns import Columns, Labels

Rows = dict[str, list[Any]]


@dataclass(frozen=True)
class Encoder:
    """Called with a batch of rows, gives input_ids, attention_mask and labels: lists, one entry a sample.

    Texts are cut to sequence_length tokens and not padded; rows from which nothing can be learnt are left out.
    """

    task: str
    columns: Columns
    tokenizer: Any
    sequence_length: int
    labels: Labels | None = None

    def __call__(self, rows: Rows) -> Rows:
        encode: Callable[[Rows], Rows] = {
            "seq2seq-lm": self._translation,
            "sequence-classification": self._classification,
            "token-classification": self._tagging,
            "question-answering": self._answering,
        }.get(self.task, self._language)
        return encode(rows)

    def _tokens(self, texts: Any, **options: Any) -> Any:
        return self.tokenizer(texts, truncation=True, max_length=self.sequence_length, **options)

    def _language(self, rows: Rows) -> Rows:
        texts = [text for text in rows[self.columns.text] if _has_text(text)]
        # A masked model learns from any token of the text, a causal one from the second token on.
        nothing = self.tokenizer.num_special_tokens_to_add() if self.task == "masked-lm" else 1
        ids = self._tokens(texts)["input_ids"] if texts else []
        return _samples(tokens for tokens in ids if len(tokens) > nothing)

    def _translation(self, rows: Rows) -> Rows:
        columns = (rows[self.columns.text], rows[self.columns.label])
        pairs = [pair for pair in zip(*columns, strict=True) if all(map(_has_text, pair))]
        if not pairs:
            return {**_samples([]), "labels": []}
        sources, targets = zip(*pairs, strict=True)
        tokens = self._tokens(list(sources), text_target=list(targets))
        return {**_samples(tokens["input_ids"]), "labels": tokens["labels"]}

    def _classification(self, rows: Rows) -> Rows:
        assert self.labels is not None
        pairs = zip(rows[self.columns.text], map(self.labels.of, rows[self.columns.label]), strict=True)
        usable = [(text, label) for text, label in pairs if _has_text(text) and label is not None]
        ids = self._tokens([text for text, _ in usable])["input_ids"] if usable else []
        return {**_samples(ids), "labels": [label for _, label in usable]}

    def _tagging(self, rows: Rows) -> Rows:
        assert self.labels is not None
        samples, tags = [], []
        for words, values in zip(rows[self.columns.text], rows[self.columns.label], strict=True):
            if not words or not values:
                continue
            tokens = self._tokens(words, is_split_into_words=True)
            aligned = _tags_of_tokens(tokens.word_ids(), values, self.labels)
            if any(tag != -100 for tag in aligned):
                samples.append(tokens["input_ids"])
                tags.append(aligned)
        return {**_samples(samples), "labels": tags}

    def _answering(self, rows: Rows) -> Rows:
        samples, spans = [], []
        columns = (self.columns.question, self.columns.text, self.columns.label)
        for question, context, answers in zip(*(rows[column] for column in columns), strict=True):
            if _has_text(question) and _has_text(context):
                tokens = self._tokens(question, text_pair=context, return_offsets_mapping=True)
                samples.append(tokens["input_ids"])
                spans.append(_answer_span(tokens, answers or {}))
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        return {**_samples(samples), "start_positions": starts, "end_positions": ends}


def _samples(ids: Iterable[Any]) -> Rows:
    samples = [list(tokens) for tokens in ids]
    return {"input_ids": samples, "attention_mask": [[1] * len(tokens) for tokens in samples]}


def _has_text(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _tags_of_tokens(words: list[int | None], values: list[Any], labels: Labels) -> list[int]:
    """The tag of each word at its first token; -100, which the loss ignores, at all other tokens."""
    tags, before = [], None
    for word in words:
        first = word is not None and word != before and word < len(values)
        label = labels.of(values[word]) if first and word is not None else None
        tags.append(-100 if label is None else int(label))
        before = word
    return tags


def _answer_span(tokens: Any, answers: Mapping[str, Any]) -> tuple[int, int]:
    """First and last token of the first answer; (0, 0) where there is none or it was cut off."""
    if not answers.get("text") or not answers.get("answer_start"):
        return 0, 0
    begin = answers["answer_start"][0]
    finish = begin + len(answers["text"][0])
    inside = [
        place
        for place, (part, (low, high)) in enumerate(zip(tokens.sequence_ids(), tokens["offset_mapping"], strict=True))
        if part == 1 and low < finish and high > begin
    ]
    whole = inside and tokens["offset_mapping"][inside[-1]][1] >= finish
    return (inside[0], inside[-1]) if whole else (0, 0)
