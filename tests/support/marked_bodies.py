"""Hypothesis strategies for request bodies of every shape, and a plain reference of their blocks."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from knapcache.keys.cache_marks import MARK_FIELDS, edit_marks
from knapcache.model import Endpoint

MARKS = ("cache_control", "prompt_cache_breakpoint")

texts = st.sampled_from(["", "a", "Be brief.", "größer — 大", "cache_control", '{"type":"text"}', "x" * 40])
words = texts.filter(bool)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | texts,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "type", "content", *MARKS]), inner, max_size=2)
    ),
    max_leaves=4,
)
objects = st.dictionaries(st.sampled_from(["a", "type", "content", *MARKS]), json_values, max_size=2)


def fields(**given: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with these fields: strategies, or fixed values. A name that ends in `_` is optional."""
    strategies = {name: each if isinstance(each, st.SearchStrategy) else st.just(each) for name, each in given.items()}
    required = {name: each for name, each in strategies.items() if not name.endswith("_")}
    optional = {name[:-1]: each for name, each in strategies.items() if name.endswith("_")}
    return st.fixed_dictionaries(required, optional=optional)


def lists(each: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(each, max_size=most)


# Anthropic.

text_block = fields(type="text", text=texts)
image = fields(type="image", source=fields(type="base64", media_type="image/png", data=words))
document = fields(type="document", source=fields(type=st.sampled_from(["text", "base64"]), data=words), title_=words)
tool_result = fields(
    type="tool_result", tool_use_id=words, content_=texts | lists(text_block | image), is_error_=st.booleans()
)
block = st.one_of(
    text_block,
    image,
    document,
    tool_result,
    fields(type="tool_use", id=words, name=words, input=objects),
    fields(type="thinking", thinking=words, signature=words),
    fields(type="redacted_thinking", data=words),
    fields(type="text", text=texts, citations=lists(objects)),
    fields(type="odd_block", cost=json_values),
)
messages_bodies = fields(
    model="claude",
    tools_=lists(fields(name=words, description=words, input_schema=objects) | fields(type="web_search", name=words)),
    system_=texts | lists(text_block),
    messages=lists(fields(role=st.sampled_from(["user", "assistant"]), content=texts | lists(block)), 4),
    tool_choice_=fields(type="auto"),
    thinking_=fields(type="enabled", budget_tokens=1024),
    stream_=st.booleans(),
)

# OpenAI.

part = st.one_of(
    text_block,
    fields(type="image_url", image_url=fields(url=words)),
    fields(type="input_audio", input_audio=fields(data=words, format="wav")),
    fields(type="odd_part", cost=json_values),
)
call = fields(id=words, type="function", function=fields(name=words, arguments=texts))
chat_message = st.one_of(
    fields(role=st.sampled_from(["system", "developer", "user"]), content=texts | lists(part), name_=words),
    fields(role="assistant", content_=st.none() | texts | lists(part), tool_calls=lists(call)),
    fields(role="assistant", content=texts | lists(part)),
    fields(role="tool", tool_call_id=words, content=texts | lists(text_block)),
)
chat_bodies = fields(
    model="gpt",
    tools_=lists(fields(type="function", function=fields(name=words, parameters=objects))),
    messages=lists(chat_message, 5),
    response_format_=objects,
    prompt_cache_key_=words,
)
input_part = st.one_of(
    fields(type="input_text", text=texts),
    fields(type="input_image", image_url=words, detail="auto"),
    fields(type="odd_part", cost=json_values),
)
item = st.one_of(
    fields(role=st.sampled_from(["system", "developer", "user"]), content=texts | lists(input_part), type_="message"),
    fields(role="assistant", content=texts | lists(fields(type="output_text", text=texts)), type_="message", id_=words),
    fields(type="function_call", call_id=words, name=words, arguments=texts),
    fields(type="function_call_output", call_id=words, output=texts | lists(input_part)),
    fields(type="reasoning", id=words, summary=lists(objects)),
    fields(type="item_reference", id=words),
)
responses_bodies = fields(
    model="gpt",
    tools_=lists(fields(type="function", name=words, parameters=objects)),
    instructions_=texts,
    input=texts | lists(item, 5),
    reasoning_=objects,
)

BODIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    Endpoint.MESSAGES: messages_bodies,
    Endpoint.CHAT: chat_bodies,
    Endpoint.RESPONSES: responses_bodies,
}


def normal(shape: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body in which every text content is a list with one text block."""
    kind = "input_text" if shape == Endpoint.RESPONSES else "text"

    def listed(value: Any) -> Any:
        return [{"type": kind, "text": value}] if isinstance(value, str) else value

    def message(value: dict[str, Any]) -> dict[str, Any]:
        return {name: listed(inner) if name in ("content", "output") else inner for name, inner in value.items()}

    found = dict(body)
    if isinstance(found.get("input"), str):
        found["input"] = [{"role": "user", "content": found["input"]}]
    if "system" in found:
        found["system"] = listed(found["system"])
    for name in ("messages", "input"):
        if name in found:
            found[name] = [message(each) for each in found[name]]
    return found


def blocks_of(shape: str, body: dict[str, Any]) -> list[Any]:
    """Return the blocks of a body in normal form, in the provider's order."""
    body = normal(shape, body)
    found = list(body.get("tools", []))
    if "instructions" in body:
        found.append(body["instructions"])
    found += body.get("system", [])
    for message in body.get("messages", []) + body.get("input", []):
        if "role" in message:
            found += message.get("content") or []
            found += message.get("tool_calls", [])
        else:
            found += message["output"] if message["type"] == "function_call_output" else [message]
    return found


def marked_blocks(shape: str, body: dict[str, Any]) -> dict[int, Any]:
    """Return the marks of a body by the index of their block."""
    field = "cache_control" if shape == Endpoint.MESSAGES else "prompt_cache_breakpoint"
    blocks = enumerate(blocks_of(shape, body))
    return {index: block[field] for index, block in blocks if isinstance(block, dict) and field in block}


def without_marks(shape: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body without marks and `prompt_cache_options`. Blocks that were strings stay blocks."""
    body = edit_marks(shape, body, MARK_FIELDS[shape])
    return {name: value for name, value in body.items() if name not in ("cache_control", "prompt_cache_options")}
