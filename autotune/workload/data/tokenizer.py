"""Tokenizer of a model, or a byte-pair one trained on the data if the model has none."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from autotune.core.errors import InvalidRequest
from autotune.core.paths import reads_as_path
from autotune.workload.data.sources import stamp
from autotune.workload.hub import NotOnHub, first_line, hub_file, hub_is_reachable
from autotune.workload.model.build import tasks_of
from autotune.workload.model.builtin import BUILT_IN
from autotune.workload.model.config import vocabulary_size

TRAINING_CHARACTERS = 20_000_000
"""Most text that a byte-pair tokenizer is trained on: enough for any vocabulary, over in seconds."""
LARGEST_TRAINED_VOCABULARY = 32768
_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model", "tokenizer.model")
_BESIDE = ("chat_template.jinja", "added_tokens.json", "special_tokens_map.json", "merges.txt")
"""Files that a tokenizer reads besides: by them it writes texts and cuts them too."""
# Not written as <s> or <mask>: text about HTML holds these, and would then hold special tokens.
_PAD, _START, _END, _UNKNOWN, _MASK = _SPECIAL = ("<|pad|>", "<|start|>", "<|end|>", "<|unknown|>", "<|mask|>")
_BYTES = 256


class TokenizerPlan(NamedTuple):
    """The tokenizer that will read the data; place is a folder or hub id, empty for one still to be trained."""

    place: str
    identity: str


def plan_tokenizer(requested: str | None, model: str, config: Any) -> TokenizerPlan:
    """The requested tokenizer, else the model's, else one to be trained. Raises InvalidRequest for a missing one."""
    place = _requested_place(requested) if requested else _model_place(model)
    if not place:
        return TokenizerPlan("", f"trained, {_trained_size(config)} tokens")
    files = [Path(place) / name for name in (*_FILES, *_BESIDE) if (Path(place) / name).is_file()]
    return TokenizerPlan(place, stamp(files) if files else place)


def open_tokenizer(plan: TokenizerPlan, config: Any, trust_remote_code: bool) -> Any:
    """The planned tokenizer; raises InvalidRequest if it cannot be opened or has more tokens than the model."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            plan.place,
            trust_remote_code=trust_remote_code,
            local_files_only=Path(plan.place).is_dir() or not hub_is_reachable(),
        )
    except Exception as error:
        raise InvalidRequest(
            f"The tokenizer {plan.place!r} cannot be opened: {first_line(error)}.",
            "Name another one with --tokenizer, or add --trust-remote-code if it needs its own code.",
        ) from error
    most = vocabulary_size(config)
    if most is not None and len(tokenizer) > most:
        raise InvalidRequest(
            f"The tokenizer {plan.place!r} has {len(tokenizer)} tokens, the model's vocabulary only {most}.",
            "Name the tokenizer that belongs to the model, or leave --tokenizer out.",
        )
    if tokenizer.pad_token is None:
        # As usual for GPT-2 and Llama: their tokenizers cannot pad.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.sep_token
    if tokenizer.pad_token is None:
        raise InvalidRequest(f"The tokenizer {plan.place!r} has no padding token.", "Add one to it and save it again.")
    tokenizer.padding_side = "right"
    return tokenizer


def train_tokenizer(texts: Iterable[str], config: Any) -> Any:
    """A byte-level byte-pair tokenizer with at most the config's vocabulary; small data gives a smaller one.

    Raises InvalidRequest if the vocabulary is too small for all bytes.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    size = _trained_size(config)
    if size < _BYTES + len(_SPECIAL):
        raise InvalidRequest(
            f"A vocabulary of {size} tokens is too small for a byte-pair tokenizer.", "Name one with --tokenizer."
        )
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(_up_to(texts, TRAINING_CHARACTERS), trainer)
    inner.post_processor = _template(config, inner)
    names = {"pad": _PAD, "bos": _START, "cls": _START, "eos": _END, "sep": _END, "unk": _UNKNOWN, "mask": _MASK}
    inputs = ["input_ids", "attention_mask"]
    if (getattr(config, "type_vocab_size", None) or 0) > 1:
        inputs.append("token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        padding_side="right",
        model_input_names=inputs,
        **{f"{name}_token": token for name, token in names.items()},
    )


def _trained_size(config: Any) -> int:
    return min(vocabulary_size(config) or LARGEST_TRAINED_VOCABULARY, LARGEST_TRAINED_VOCABULARY)


def _template(config: Any, inner: Any) -> Any:
    """Start and end around a text for encoders, an end for decoders, as their tokenizers do."""
    from tokenizers import processors

    encoder = "masked-lm" in tasks_of(config) and not config.is_encoder_decoder
    start = f"{_START} " if encoder else ""
    return processors.TemplateProcessing(
        single=f"{start}$A {_END}",
        pair=f"{start}$A {_END} $B:1 {_END}:1",
        special_tokens=[(token, inner.token_to_id(token)) for token in (_START, _END)],
    )


def _up_to(texts: Iterable[str], most: int) -> Iterable[str]:
    seen = 0
    for text in texts:
        if seen >= most:
            return
        yield text[: most - seen]
        seen += len(text)


def _requested_place(requested: str) -> str:
    """Folder or hub id of a requested tokenizer. Raises InvalidRequest for a path that holds none."""
    path = Path(requested).expanduser()
    if not path.exists() and not reads_as_path(requested):
        return requested
    if not any((path / name).is_file() for name in (*_FILES, "added_tokens.json")):
        raise InvalidRequest(f"The tokenizer {requested} is no folder of one.", "Name the folder of a saved tokenizer.")
    return str(path.resolve())


def _model_place(model: str) -> str:
    """Folder or hub id of the model's tokenizer; empty for built-in shapes, JSON files and models without one."""
    if model in BUILT_IN:
        return ""
    path = Path(model).expanduser()
    if path.exists():
        # Without these files transformers makes up an empty tokenizer from the model type alone.
        return str(path.resolve()) if any((path / name).is_file() for name in _FILES) else ""
    return model if _on_hub(model) else ""


def _on_hub(name: str) -> bool:
    for file in _FILES:
        try:
            hub_file(name, file)
            return True
        except NotOnHub:
            continue
    return False
