"""What the fake LLM says: answers of every endpoint, plain and streamed, written out by hand.

It echoes the last thing it was told, so that an answer given to the wrong question is seen; ids count calls, so that an
answer given twice is seen. Tools that are offered are called, `n`, `logprobs` and `reasoning_effort` are obeyed.
Streams come a word at a time and owe nothing to `knapcache.wire`, whose judge they are.
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
    """Text a word at a time."""
    return re.findall(r"\S+\s*|\s+", text)


def last_text(body: Body) -> str:
    """The last thing said in a request."""
    given = body.get("messages") or body.get("input") or body.get("prompt") or ""
    while isinstance(given, list) and given:
        given = given[-1]
    if isinstance(given, dict):
        content = given.get("content", given.get("text", ""))
        return content if isinstance(content, str) else last_text({"messages": content})
    return str(given)


def reply(body: Body, k: int = 0) -> str:
    """What is answered, as choice k."""
    return f"You said: {last_text(body)}" + (f" ({k})" if k else "")


def openai_usage(body: Body, answered: str) -> Body:
    """Tokens are words here."""
    asked, said = len(words(last_text(body))), len(words(answered))
    details = {"cached_tokens": 0}
    return {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": asked + said,
        "prompt_tokens_details": details,
    }


def logprob(token: str) -> Body:
    """A token's log probability."""
    return {"token": token, "logprob": -0.25, "bytes": list(token.encode()), "top_logprobs": []}


def chat(body: Body, serial: int) -> Body:
    """A chat completion."""
    choices = []
    for k in range(body.get("n") or 1):
        text = reply(body, k)
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
    usage = openai_usage(body, reply(body) * len(choices))
    return {**head, "system_fingerprint": "fp_1", "choices": choices, "usage": usage}


def chat_stream(body: Body, serial: int) -> Iterator[str]:
    """The same as chunks."""
    whole = chat(body, serial)
    head = {n: whole[n] for n in ("id", "created", "model", "system_fingerprint")}
    asked = (body.get("stream_options") or {}).get("include_usage")

    def chunk(choices: list[Body], usage: Body | None = None) -> str:
        said: Body = {**head, "object": "chat.completion.chunk", "choices": choices}
        return json.dumps({**said, "usage": usage} if asked else said)

    def delta(k: int, said: Body, finish: str | None = None, logprobs: Body | None = None) -> str:
        return chunk([{"index": k, "delta": said, "logprobs": logprobs, "finish_reason": finish}])

    for choice in whole["choices"]:
        k, message = choice["index"], choice["message"]
        yield delta(k, {"role": "assistant", "content": "" if message["content"] else None, "refusal": None})
        for word in words(message.get("reasoning_content", "")):
            yield delta(k, {"reasoning_content": word})
        for word in words(message["content"] or ""):
            beside = {"content": [logprob(word)], "refusal": None} if body.get("logprobs") else None
            yield delta(k, {"content": word}, logprobs=beside)
        for i, call in enumerate(message.get("tool_calls", [])):
            function = call["function"]
            yield delta(k, {"tool_calls": [{**call, "index": i, "function": {**function, "arguments": ""}}]})
            for word in words(function["arguments"]):
                yield delta(k, {"tool_calls": [{"index": i, "function": {"arguments": word}}]})
    for choice in whole["choices"]:
        yield delta(choice["index"], {}, choice["finish_reason"])
    if asked:
        yield chunk([], whole["usage"])
    yield "[DONE]"


def completion(body: Body, serial: int) -> Body:
    """A completion of the older kind."""
    head = {"id": f"cmpl-{serial}", "object": "text_completion", "created": 1700000000, "model": body["model"]}
    choices = [
        {"text": reply(body, k), "index": k, "logprobs": None, "finish_reason": "stop"}
        for k in range(body.get("n") or 1)
    ]
    return {**head, "choices": choices, "usage": openai_usage(body, reply(body))}


def completion_stream(body: Body, serial: int) -> Iterator[str]:
    """The same as chunks."""
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
    """A response."""
    text = reply(body)
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    output: list[Body] = [
        {"id": f"msg_{serial}", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    ]
    if body.get("tools"):
        call = {"type": "function_call", "id": f"fc_{serial}", "call_id": "call_1", "status": "completed"}
        output = [{**call, "name": body["tools"][0]["name"], "arguments": json.dumps({"text": last_text(body)})}]
    asked, said = len(words(last_text(body))), len(words(text))
    usage = {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": asked + said,
    }
    head = {"id": f"resp_{serial}", "object": "response", "created_at": 1700000000, "status": "completed"}
    rest = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": body.get("tools") or [], "error": None}
    return {**head, "model": body["model"], "output": output, "usage": usage, **rest}


def response_stream(body: Body, serial: int) -> Iterator[str]:
    """The same as events."""
    whole = response(body, serial)
    said: list[Body] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress", "output": [], "usage": None}}
    ]
    for index, item in enumerate(whole["output"]):
        at = {"output_index": index}
        inner = {**at, "item_id": item["id"]}
        if item["type"] == "message":
            place = {**inner, "content_index": 0}
            part = item["content"][0]
            said.append({"type": "response.output_item.added", **at, "item": {**item, "content": []}})
            said.append({"type": "response.content_part.added", **place, "part": {**part, "text": ""}})
            for word in words(part["text"]):
                said.append({"type": "response.output_text.delta", **place, "delta": word, "logprobs": []})  # noqa: PERF401
            said.append({"type": "response.output_text.done", **place, "text": part["text"], "logprobs": []})
            said.append({"type": "response.content_part.done", **place, "part": part})
        else:
            said.append({"type": "response.output_item.added", **at, "item": {**item, "arguments": ""}})
            for word in words(item["arguments"]):
                said.append({"type": "response.function_call_arguments.delta", **inner, "delta": word})  # noqa: PERF401
            done = {"arguments": item["arguments"], "name": item["name"]}
            said.append({"type": "response.function_call_arguments.done", **inner, **done})
        said.append({"type": "response.output_item.done", **at, "item": item})
    said.append({"type": "response.completed", "response": whole})
    for number, event in enumerate(said):
        yield json.dumps({**event, "sequence_number": number})


def message(body: Body, serial: int) -> Body:
    """A message of Anthropic's."""
    text = reply(body)
    content: list[Body] = [{"type": "text", "text": text}]
    if body.get("thinking"):
        content.insert(0, {"type": "thinking", "thinking": "They spoke; I answer.", "signature": "c2lnbg=="})
    if body.get("tools"):
        given = {"text": last_text(body)}
        content.append({"type": "tool_use", "id": "toolu_1", "name": body["tools"][0]["name"], "input": given})
    stop = "tool_use" if body.get("tools") else "end_turn"
    usage = {"input_tokens": len(words(last_text(body))), "output_tokens": len(words(text))}
    head = {"id": f"msg_{serial}", "type": "message", "role": "assistant", "model": body["model"]}
    return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": usage}


EMPTY: dict[str, Body] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
"""Blocks before anything is said in them."""


def message_stream(body: Body, serial: int) -> Iterator[str]:
    """The same as events."""
    whole = message(body, serial)
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    yield json.dumps({"type": "message_start", "message": start})
    for index, block in enumerate(whole["content"]):
        opened = {**block, **EMPTY[block["type"]]}
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
    """A content block, a word at a time."""
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": word} for word in words(block["text"]))
    elif block["type"] == "thinking":
        yield from ({"type": "thinking_delta", "thinking": word} for word in words(block["thinking"]))
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        yield from ({"type": "input_json_delta", "partial_json": word} for word in words(json.dumps(block["input"])))


def embedding(body: Body, serial: int) -> Body:
    """Embeddings: vectors that depend on the text alone, and on the call by their last number."""
    given = body["input"]
    several = isinstance(given, list) and not (given and isinstance(given[0], int))
    data = []
    for index, item in enumerate(given if several else [given]):
        vector = [float(len(item)), float(sum(str(item).encode()) % 997), float(serial)]
        packed = b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        as_asked = packed if body.get("encoding_format") == "base64" else vector
        data.append({"object": "embedding", "index": index, "embedding": as_asked})
    tokens = sum(len(words(item)) if isinstance(item, str) else len(item) for item in (given if several else [given]))
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
