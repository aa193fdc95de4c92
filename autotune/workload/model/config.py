"""Config of a model: built in, a local folder, a JSON file or a hub id; weights are never touched."""

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from transformers import AutoConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from autotune.core.errors import InvalidRequest, did_you_mean
from autotune.workload.hub import NotOnHub, first_line, hub_file, hub_is_reachable, why_not_on_hub
from autotune.workload.model.builtin import BUILT_IN
from autotune.workload.model.files import check_config, config_file, read_config_file

_RELATIVE_POSITIONS = frozenset(
    {
        *("bloom", "falcon_mamba", "funnel", "longt5", "mamba", "mamba2", "mpt", "mt5", "rwkv", "switch_transformers"),
        *("t5", "umt5", "xlnet"),
    }
)
"""Model types without a table of positions: positions in their configs are not a limit."""

_POSITIONS_AFTER_PADDING = frozenset(
    {
        *("camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm"),
        *("mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    }
)
"""Model types that count positions from pad_token_id + 1: this number of rows of their table is never used."""


def read_config(name: str, trust_remote_code: bool) -> tuple[Any, str]:
    """The config of a model, and a source from which another process can open it again.

    name: a built-in name, a local folder with a config.json, a config JSON file or a hub id.
    Raises InvalidRequest, one line with advice, if there is no such model or its config cannot be used.
    """
    if name in BUILT_IN:
        shape = BUILT_IN[name]
        return AutoConfig.for_model(shape.model_type, **shape.config), name
    file, source = _config_file(name)
    raw = read_config_file(file)
    check_config(name, raw)
    _check_type(name, raw, trust_remote_code)
    try:
        offline = source != name or not hub_is_reachable()
        config = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, local_files_only=offline)
    except Exception as error:
        raise InvalidRequest(
            f"The config of {name!r} cannot be used: {first_line(error)}.",
            "Check its values, or whether this version of transformers knows them.",
        ) from error
    return config, source


def longest_sequence(config: Any) -> int | None:
    """The most tokens of one sample that the model takes; None if positions are relative or unknown."""
    if config.model_type in _RELATIVE_POSITIONS:
        return None
    names = ("max_position_embeddings", "n_positions", "max_seq_len")
    of_pairs = ("max_encoder_position_embeddings", "max_decoder_position_embeddings")
    limit = _smallest(config, (*names, *of_pairs))
    return None if limit is None else limit - _positions_before_tokens(config)


def vocabulary_size(config: Any) -> int | None:
    """The smallest vocabulary among the model's parts; None if the config states none."""
    return _smallest(config, ("vocab_size", "src_vocab_size", "tgt_vocab_size"))


def _smallest(config: Any, names: tuple[str, ...]) -> int | None:
    sizes = [getattr(part, name, None) for part in parts(config) for name in names]
    return min((size for size in sizes if isinstance(size, int) and size > 0), default=None)


def image_shape(config: Any) -> tuple[int, int, int]:
    """(channels, height, width) of the images the model takes; 3 x 224 x 224 if the config does not say."""
    part = getattr(config, "vision_config", config)
    size = getattr(part, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    return getattr(part, "num_channels", None) or 3, height, width


def token_id(config: Any, name: str) -> int | None:
    """A token's id, such as `pad_token_id`; the first if the config states several, None if it states none."""
    value = getattr(config, name, None)
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return value if isinstance(value, int) else None


def parts(config: Any) -> Iterator[Any]:
    """The config, and the configs of text inside it (a multimodal model's, an encoder-decoder pair's)."""
    yield config
    for name in ("text_config", "encoder", "decoder"):
        part = getattr(config, name, None)
        if hasattr(part, "model_type"):
            yield part


def _positions_before_tokens(config: Any) -> int:
    if config.model_type not in _POSITIONS_AFTER_PADDING:
        return 0
    if config.model_type == "esm" and getattr(config, "position_embedding_type", "absolute") != "absolute":
        return 0
    padding = token_id(config, "pad_token_id")
    return 0 if padding is None else padding + 1


def _config_file(name: str) -> tuple[Path, str]:
    """The config's file, and the source: an absolute path or the hub id."""
    if file := config_file(name):
        return file, str(Path(name).expanduser().resolve())
    try:
        return hub_file(name, "config.json"), name
    except NotOnHub as error:
        local, advice = "it is not built in", did_you_mean(name, BUILT_IN)
        if "/" in name:
            local, advice = "no folder of that name", "Check the spelling; a private model needs `hf auth login`."
        raise InvalidRequest(f"There is no model {name!r}: {local}, and {why_not_on_hub()}.", advice) from error


def _check_type(name: str, raw: Any, trust_remote_code: bool) -> None:
    """Raises InvalidRequest if transformers does not know the model type, or code would have to be trusted."""
    remote = "AutoConfig" in (raw.get("auto_map") or {})
    model_type = raw.get("model_type")
    if remote and (trust_remote_code or model_type not in CONFIG_MAPPING):
        if not trust_remote_code:
            raise InvalidRequest(
                f"The model {name!r} brings Python code of its own.",
                "Read that code, then add --trust-remote-code if you trust it.",
            )
        return
    if model_type not in CONFIG_MAPPING:
        near = get_close_matches(str(model_type), list(CONFIG_MAPPING), n=5, cutoff=0.5)
        raise InvalidRequest(
            f"This transformers knows no model_type {model_type!r} (in the config of {name!r}).",
            did_you_mean(model_type, near) if near else "Upgrade transformers if the model is newer than it.",
        )
