"""Answers of the fake provider: every endpoint, plain and streamed, written by hand.

An answer echoes the last text of its request, so that an answer to the wrong request is detected. Ids count calls, so
that an answer served twice is detected. Offered tools are called; `n`, `logprobs` and `reasoning_effort` are respected.
Streams have one event per word. They do not use `knapcache.wire`, because they test it.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

Body = dict[str, Any]


def words(text: str) -> list[str]:
    """Split text into words with their trailing white space."""
    return re.findall(r"\S+\s*|\s+", text)


def last_text(body: Body) -> str:
    """Return the text of the last message or input of a request."""
    content = body.get("messages") or body.get("input") or body.get("prompt") or ""
    while isinstance(content, list) and content:
        content = content[-1]
    if isinstance(content, dict):
        text = content.get("content", content.get("text", ""))
        return text if isinstance(text, str) else last_text({"messages": text})
    return str(content)


SCRIPTED = "scripted answer"
"""Key of a request body under which the fake provider puts the text of a scripted answer."""


def answer_text(body: Body, k: int = 0) -> str:
    """Return the text of choice k."""
    return str(body.get(SCRIPTED, f"You said: {last_text(body)}")) + (f" ({k})" if k else "")


def openai_usage(body: Body, answer: str) -> Body:
    """Return the usage object; every word counts as one token."""
    input_tokens, output_tokens = len(words(last_text(body))), len(words(answer))
    details = {"cached_tokens": 0}
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "prompt_tokens_details": details,
    }


def logprob(token: str) -> Body:
    return {"token": token, "logprob": -0.25, "bytes": list(token.encode()), "top_logprobs": []}


def chat(body: Body, serial: int) -> Body:
    """Return a chat completion."""
    choices = []
    for k in range(body.get("n") or 1):
        text = answer_text(body, k)
        message: Body = {"role": "assistant", "content": text, "refusal": None}
        logprobs = {"content": [logprob(w) for w in words(text)], "refusal": None} if body.get("logprobs") else None
        if body.get("reasoning_effort"):
            message["reasoning_content"] = "They spoke; I answer."
        if body.get("tools"):
            arguments = json.dumps({"text": last_text(body)})
            function = {"name": body["tools"][0]["function"]["name"], "arguments": arguments}
            message |= {"content": None, "tool_calls": [{"id": f"call_{k}", "type": "function", "function": function}]}
        finish = "tool_calls" if body.get("tools") else "stop"
        choices.append({"index": k, "message": message, "logprobs": logprobs, "finish_reason": finish})
    head = {"id": f"chatcmpl-{serial}", "object": "chat.completion", "created": 1700000000, "model": body["model"]}
    usage = openai_usage(body, answer_text(body) * len(choices))
    return {**head, "system_fingerprint": "fp_1", "choices": choices, "usage": usage}


def chat_stream(body: Body, serial: int) -> Iterator[str]:
    """Yield a chat completion as chunks."""
    whole = chat(body, serial)
    head = {n: whole[n] for n in ("id", "created", "model", "system_fingerprint")}
    with_usage = (body.get("stream_options") or {}).get("include_usage")

    def encode_chunk(choices: list[Body], usage: Body | None = None) -> str:
        chunk: Body = {**head, "object": "chat.completion.chunk", "choices": choices}
        return json.dumps({**chunk, "usage": usage} if with_usage else chunk)

    def encode_delta(k: int, delta: Body, finish: str | None = None, logprobs: Body | None = None) -> str:
        return encode_chunk([{"index": k, "delta": delta, "logprobs": logprobs, "finish_reason": finish}])

    for choice in whole["choices"]:
        k, message = choice["index"], choice["message"]
        yield encode_delta(k, {"role": "assistant", "content": "" if message["content"] else None, "refusal": None})
        for word in words(message.get("reasoning_content", "")):
            yield encode_delta(k, {"reasoning_content": word})
        for word in words(message["content"] or ""):
            logprobs = {"content": [logprob(word)], "refusal": None} if body.get("logprobs") else None
            yield encode_delta(k, {"content": word}, logprobs=logprobs)
        for i, call in enumerate(message.get("tool_calls", [])):
            function = call["function"]
            yield encode_delta(k, {"tool_calls": [{**call, "index": i, "function": {**function, "arguments": ""}}]})
            for word in words(function["arguments"]):
                yield encode_delta(k, {"tool_calls": [{"index": i, "function": {"arguments": word}}]})
    for choice in whole["choices"]:
        yield encode_delta(choice["index"], {}, choice["finish_reason"])
    if with_usage:
        yield encode_chunk([], whole["usage"])
    yield "[DONE]"


def completion(body: Body, serial: int) -> Body:
    """Return a legacy text completion."""
    head = {"id": f"cmpl-{serial}", "object": "text_completion", "created": 1700000000, "model": body["model"]}
    choices = [
        {"text": answer_text(body, k), "index": k, "logprobs": None, "finish_reason": "stop"}
        for k in range(body.get("n") or 1)
    ]
    return {**head, "choices": choices, "usage": openai_usage(body, answer_text(body))}


def completion_stream(body: Body, serial: int) -> Iterator[str]:
    """Yield a legacy text completion as chunks."""
    whole = completion(body, serial)
    head = {n: whole[n] for n in ("id", "object", "created", "model")}
    for choice in whole["choices"]:
        for word in words(choice["text"]):
            yield json.dumps({**head, "choices": [{**choice, "text": word, "finish_reason": None}]})
        yield json.dumps({**head, "choices": [{**choice, "text": ""}]})
    if (body.get("stream_options") or {}).get("include_usage"):
        yield json.dumps({**head, "choices": [], "usage": whole["usage"]})
    yield "[DONE]"


def response(body: Body, serial: int) -> Body:
    """Return an answer of the Responses API."""
    text = answer_text(body)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    output: list[Body] = [
        {"id": f"msg_{serial}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    ]
    if body.get("tools"):
        call = {"type": "function_call", "id": f"fc_{serial}", "call_id": "call_1", "status": "completed"}
        output = [{**call, "name": body["tools"][0]["name"], "arguments": json.dumps({"text": last_text(body)})}]
    input_tokens, output_tokens = len(words(last_text(body))), len(words(text))
    usage = {
        "input_tokens": input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input_tokens + output_tokens,
    }
    head = {"id": f"resp_{serial}", "object": "response", "created_at": 1700000000, "status": "completed"}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": body.get("tools") or [], "error": None}
    return {**head, "model": body["model"], "output": output, "usage": usage, **rest}


def response_stream(body: Body, serial: int) -> Iterator[str]:
    """Yield an answer of the Responses API as events."""
    whole = response(body, serial)
    events: list[Body] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}}
    ]
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        inner = {**at, "item_id": item["id"]}
        if item["type"] == "message":
            place = {**inner, "content_index": 0}
            part = item["content"][0]
            events.append({"type": "response.output_item.added", **at, "item": {**item, "content": []}})
            events.append({"type": "response.content_part.added", **place, "part": {**part, "text": ""}})
            for word in words(part["text"]):
                events.append({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []})  # noqa: PERF401
            events.append({"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []})
            events.append({"type": "response.content_part.done", **place, "part": part})
        else:
            events.append({"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}})
            for word in words(item["arguments"]):
                events.append({"type": "response.function_call_arguments.delta", **inner, "delta": word})  # noqa: PERF401
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append({"type": "response.function_call_arguments.done", **inner, **done})
        events.append({"type": "response.output_item.done", **at, "item": item})
    events.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(events):
        yield json.dumps({**event, "sequence_number": number})


def message(body: Body, serial: int) -> Body:
    """Return an answer of Anthropic's Messages API."""
    text = answer_text(body)
    content: list[Body] = [{"type": "text", "text": text}]
    if body.get("thinking"):
        content.insert(0, {"type": "thinking", "thinking": "They spoke; I answer.", "signature": "c2lnbg=="})
    if body.get("tools"):
        arguments = {"text": last_text(body)}
        content.append({"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": arguments})
    stop = "tool_use" if body.get("tools") else "end_turn"
    usage = {"input_tokens": len(words(last_text(body))), "output_tokens": len(words(text))}
    head = {"id": f"msg_{serial}", "type": "message", "role": "assistant", "model": body["model"]}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


EMPTY_BLOCKS: dict[str, Body] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""Fields of a content block at its start event, by block type."""


def message_stream(body: Body, serial: int) -> Iterator[str]:
    """Yield an answer of the Messages API as events."""
    whole = message(body, serial)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield json.dumps({"type": "message_start", "message": start})
    for index, block in enumerate(whole["content"]):
        opened = {**block, **EMPTY_BLOCKS[block["type"]]}
        yield json.dumps({"type": "content_block_start", "index": index, "content_block": opened})
        if index == 0:
            yield json.dumps({"type": "ping"})
        for delta in message_deltas(block):
            yield json.dumps({"type": "content_block_delta", "index": index, "delta": delta})
        yield json.dumps({"type": "content_block_stop", "index": index})
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": whole["usage"]["output_tokens"]}
    yield json.dumps({"type": "message_delta", "delta": end, "usage": usage})
    yield json.dumps({"type": "message_stop"})


def message_deltas(block: Body) -> Iterator[Body]:
    """Yield the deltas of a content block, one per word."""
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": word} for word in words(block["text"]))
    elif block["type"] == "thinking":
        yield from ({"type": "thinking_delta", "thinking": word} for word in words(block["thinking"]))
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        yield from ({"type": "input_json_delta", "partial_json": word} for word in words(json.dumps(block["input"])))


def embedding(body: Body, serial: int) -> Body:
    """Return embeddings. The last number of a vector is the number of the call; the others depend on the text."""
    content = body["input"]
    is_batch = isinstance(content, list) and not (content and isinstance(content[0], int))
    data = []
    for index, item in enumerate(content if is_batch else [content]):
        vector = [float(len(item)), float(sum(str(item).encode()) % 997), float(serial)]
        packed = b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        encoded = packed if body.get("encoding_format") == "base64" else vector
        data.append({"object": "embedding", "index": index, "embedding": encoded})
    tokens = sum(
        len(words(item)) if isinstance(item, str) else len(item) for item in (content if is_batch else [content])
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": body["model"], "usage": usage}


PLAIN = {
    "/chat/completions": chat,
    "/completions": completion,
    "/responses": response,
    "/messages": message,
    "/embeddings": embedding,
}
STREAM = {
    "/chat/completions": chat_stream,
    "/completions": completion_stream,
    "/responses": response_stream,
    "/messages": message_stream,
}
