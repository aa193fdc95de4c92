"""Conversations as text: by the tokenizer's chat template, or one line a message if it has none."""

import json
from collections.abc import Mapping
from typing import Any

from autotune.core.errors import InvalidRequest
from autotune.workload.hub import first_line

_ROLES = {"human": "user", "gpt": "assistant"}
"""Roles as ShareGPT calls them, which no chat template uses."""


def is_conversation(value: Any) -> bool:
    """True for a list of messages: role and content, or ShareGPT's from and value."""
    if not isinstance(value, list) or not value or not all(isinstance(message, Mapping) for message in value):
        return False
    return "role" in value[0] or {"from", "value"} <= value[0].keys()


def messages_of(value: Any) -> list[dict[str, Any]]:
    """The messages of a conversation with role and content. Raises InvalidRequest if one holds anything but text."""
    return [_message(message) for message in value]


def chat_text(messages: list[dict[str, Any]], tokenizer: Any, tools: Any = None, to_answer: bool = False) -> str:
    """The conversation as the text that a model learns from; to_answer: up to where the assistant's next message begins.

    tokenizer: None for one without a chat template; tools: schemas of functions, or their JSON text.
    Raises InvalidRequest if the tools are not JSON or the chat template refuses the conversation.
    """
    try:
        tools = _without_none(json.loads(tools) if isinstance(tools, str) and tools else tools) or None
    except ValueError as error:
        raise InvalidRequest(
            f"The column 'tools' holds a text that is not JSON: {first_line(error)}.",
            "Write schemas of functions, or remove it.",
        ) from error
    if not has_template(tokenizer):
        return _plain(messages, tools, to_answer)
    try:
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=to_answer)
    except Exception as error:  # the template is a program, and may raise anything
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise InvalidRequest(
            f"The tokenizer's chat template refuses a conversation of {roles}: {first_line(error)}.",
            "Change the conversations, or name a tokenizer with another template.",
        ) from error
    return str(text)


def has_template(tokenizer: Any) -> bool:
    """True for a tokenizer that writes conversations by a template, its special tokens included."""
    return bool(getattr(tokenizer, "chat_template", None))


def _plain(messages: list[dict[str, Any]], tools: Any, to_answer: bool) -> str:
    lines = [json.dumps(tools)] if tools else []
    for message in messages:
        calls = message.get("tool_calls")
        lines.append(f"{message.get('role')}: {message['content'] or (json.dumps(calls) if calls else '')}")
    return "\n".join([*lines, *(["assistant:"] if to_answer else [])])


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    fields = _without_none(message)
    content = fields.pop("value", fields.get("content", ""))
    if isinstance(content, list):
        kinds = {part.get("type") if isinstance(part, Mapping) else "" for part in content}
        if kinds - {"text"}:
            raise InvalidRequest(
                f"A message holds {', '.join(sorted(map(str, kinds - {'text'})))}, and only text is read.",
                "Build a Trainer with your own collator, and search with autotune.tune(trainer).",
            )
        content = "".join(str(part.get("text", "")) for part in content)
    role = str(fields.pop("from", fields.get("role", "user")))
    return {**fields, "role": _ROLES.get(role, role), "content": content}


def _without_none(value: Any) -> Any:
    """The value without the fields that a table adds to rows that lack them."""
    if isinstance(value, Mapping):
        return {name: _without_none(field) for name, field in value.items() if field is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
