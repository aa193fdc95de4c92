"""Tokenised samples of rows of text, for each task."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

from autotune.workload.data.chat import chat_text, has_template, is_conversation, messages_of
from autotune.workload.data.columns import Columns
from autotune.workload.data.labels import Labels

Rows = dict[str, list[Any]]
TYPES = "token_type_ids"
LONG_TEXT, SPARE = 1_000_000, 16
"""Characters up to which every text is tokenised whole; above, SPARE times those of a sample of the longest tokens."""


@dataclass(frozen=True)
class Encoder:
    """Called with a batch of rows, gives input_ids, attention_mask and labels: lists, one entry a sample.

    Texts are cut to sequence_length tokens and not padded; rows without anything to learn are left out.
    """

    task: str
    columns: Columns
    tokenizer: Any
    sequence_length: int
    labels: Labels | None = None

    def __call__(self, rows: Rows) -> Rows:
        if self.task == "causal-lm" and self.columns.label:
            return self._completion(rows)
        encode: Callable[[Rows], Rows] = {
            "seq2seq-lm": self._translation,
            "sequence-classification": self._classification,
            "token-classification": self._tagging,
            "question-answering": self._answering,
        }.get(self.task, self._language)
        return encode(rows)

    def _tokens(self, *texts: Any, **options: Any) -> Any:
        cut: list[Any] = [
            self._shortened(text) if isinstance(text, str) else [*map(self._shortened, text)] for text in texts
        ]
        if target := options.get("text_target"):
            options["text_target"] = [*map(self._shortened, target)]
        return self.tokenizer(*cut, truncation=True, max_length=self.sequence_length, **options)

    @cached_property
    def _most_characters(self) -> int:
        longest = max(map(len, self.tokenizer.get_vocab()), default=1)
        return max(LONG_TEXT, SPARE * self.sequence_length * longest)

    def _shortened(self, text: str) -> str:
        """The part of a very long text that makes a whole sample: a tokenizer takes 13 times its memory."""
        most = self._most_characters
        return text[:most] if self.tokenizer.truncation_side == "right" else text[-most:]

    def _texts(self, rows: Rows, column: str) -> list[Any]:
        """The texts of a column, its conversations written out."""
        return [self._text(value, tools) for value, tools in zip(rows[column], self._tools(rows), strict=True)]

    def _text(self, value: Any, tools: Any = None) -> Any:
        return chat_text(messages_of(value), self.tokenizer, tools) if is_conversation(value) else value

    def _tools(self, rows: Rows) -> list[Any]:
        return rows[self.columns.tools] if self.columns.tools else [None] * len(rows[self.columns.text])

    def _has_special_tokens(self, rows: Rows) -> bool:
        """True if a chat template has written the special tokens into the texts."""
        return has_template(self.tokenizer) and any(map(is_conversation, rows[self.columns.text]))

    def _ids(self, texts: list[Any], rows: Rows) -> list[list[int]]:
        ids = self._tokens(texts, add_special_tokens=not self._has_special_tokens(rows)) if texts else {"input_ids": []}
        return list(ids["input_ids"])

    def _pairs(self, texts: list[tuple[str, str]]) -> Rows:
        """Two texts a sample, with the ids that tell them apart if the tokenizer has such."""
        tokens = self._tokens(*map(list, zip(*texts, strict=True))) if texts else {"input_ids": [], TYPES: []}
        types = {TYPES: tokens[TYPES]} if TYPES in self.tokenizer.model_input_names else {}
        return {**_samples(tokens["input_ids"]), **types}

    def _language(self, rows: Rows) -> Rows:
        texts = [text for text in self._texts(rows, self.columns.text) if _has_text(text)]
        # A masked model learns from any token of the text, a causal one from the second token on.
        nothing = self.tokenizer.num_special_tokens_to_add() if self.task == "masked-lm" else 1
        return _samples(tokens for tokens in self._ids(texts, rows) if len(tokens) > nothing)

    def _completion(self, rows: Rows) -> Rows:
        """Prompt and completion as one sample; the labels of the prompt are -100, which the loss ignores."""
        prompts, wholes = [], []
        columns = (rows[self.columns.text], rows[self.columns.label], self._tools(rows))
        for prompt, completion, tools in zip(*columns, strict=True):
            if is_conversation(prompt) and is_conversation(completion):
                messages = messages_of(prompt)
                prompts.append(chat_text(messages, self.tokenizer, tools, to_answer=True))
                wholes.append(chat_text([*messages, *messages_of(completion)], self.tokenizer, tools))
            elif _has_text(prompt) and _has_text(completion):
                prompts.append(prompt)
                wholes.append(prompt + completion)
        samples, labels = self._ids(wholes, rows), []
        end = [] if self._has_special_tokens(rows) else [self.tokenizer.eos_token_id]
        for prompt, sample in zip(self._ids(prompts, rows), samples, strict=True):
            if end not in ([], [None], sample[-1:]) and len(sample) < self.sequence_length:
                sample += end
            # A prompt alone may end in another token than within the whole, such as an end token.
            begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, sample, strict=False)))
            labels.append([-100] * begin + sample[begin:])
        return _learnable({**_samples(samples), "labels": labels})

    def _translation(self, rows: Rows) -> Rows:
        columns = (self._texts(rows, self.columns.text), self._texts(rows, self.columns.label))
        pairs = [pair for pair in zip(*columns, strict=True) if all(map(_has_text, pair))]
        if not pairs:
            return {**_samples([]), "labels": []}
        sources, targets = zip(*pairs, strict=True)
        tokens = self._tokens(list(sources), text_target=list(targets))
        return {**_samples(tokens["input_ids"]), "labels": tokens["labels"]}

    def _classification(self, rows: Rows) -> Rows:
        assert self.labels is not None
        columns = (self._texts(rows, column) for column in (self.columns.text, self.columns.pair) if column)
        labelled = zip(zip(*columns, strict=True), map(self.labels.of, rows[self.columns.label]), strict=True)
        usable = [(texts, label) for texts, label in labelled if all(map(_has_text, texts)) and label is not None]
        texts = [texts for texts, _ in usable]
        samples = self._pairs(texts) if self.columns.pair else _samples(self._ids([text for (text,) in texts], rows))
        return {**samples, "labels": [label for _, label in usable]}

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
        columns = (self.columns.text, self.columns.pair, self.columns.label)
        for question, context, answers in zip(*(rows[column] for column in columns), strict=True):
            if _has_text(question) and _has_text(context):
                tokens = self._tokens(question, context, return_offsets_mapping=True)
                samples.append(tokens["input_ids"])
                spans.append(_answer_span(tokens, answers or {}))
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        return {**_samples(samples), "start_positions": starts, "end_positions": ends}


def _samples(ids: Iterable[Any]) -> Rows:
    samples = [list(tokens) for tokens in ids]
    return {"input_ids": samples, "attention_mask": [[1] * len(tokens) for tokens in samples]}


def _learnable(samples: Rows) -> Rows:
    """The samples of a causal model that have a label to learn from after their first token."""
    places = [place for place, labels in enumerate(samples["labels"]) if any(number != -100 for number in labels[1:])]
    return {name: [values[place] for place in places] for name, values in samples.items()}


def _has_text(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _tags_of_tokens(words: list[int | None], values: list[Any], labels: Labels) -> list[int]:
    """The tag of each word at its first token; -100, which the loss ignores, at all other tokens."""
    tags, before = [], None
    for word in words:
        first = word is not None and word != before and word < len(values)
        label: Any = labels.of(values[word]) if first and word is not None else None
        tags.append(-100 if label is None else int(label))
        before = word
    return tags


def _answer_span(tokens: Any, answers: Mapping[str, Any]) -> tuple[int, int]:
    """First and last token of the first answer; (0, 0) if there is none or it was cut off."""
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
