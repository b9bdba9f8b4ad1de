"""A fake of Amazon Bedrock's own API, with a prompt cache."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

from knapcache.serve.http.bedrock import model_in_path
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide, plain

STRICT = "anthropic.claude-opus-4-1-20250805-v1:0"
"""A model with which marks are refused."""
TOKENS_PER_BYTE = 0.25
JSON_TYPE = "content-type: application/json"
STREAM_TYPE = "application/vnd.amazon.eventstream"
BEDROCK_NAMES = ("inputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
ANTHROPIC_NAMES = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
NOT_CONTENT = ("cache_control", "type")


def marked_prefixes(body: Any) -> list[str]:
    """Return the prefix up to each mark, as text."""
    found, so_far = [], ""
    tools = body.get("toolConfig", {}).get("tools", []) + body.get("tools", [])
    system = body.get("system", [])
    contents = [tools, system] + [message["content"] for message in body["messages"]]
    for content in contents:
        for block in [content] if isinstance(content, str) else content:
            if "cachePoint" not in block:
                kept = {"text": block} if isinstance(block, str) else block
                so_far += json.dumps({name: part for name, part in kept.items() if name not in NOT_CONTENT})
            if "cachePoint" in block or "cache_control" in block:
                found.append(so_far)
    return found


def message(payload: Any, kind: str = "chunk") -> bytes:
    """Return one message of an AWS event stream."""
    content = json.dumps(payload, separators=(",", ":")).encode()
    headers = b"\x0b:event-type\x07" + struct.pack(">H", len(kind)) + kind.encode()
    prelude = struct.pack(">II", len(headers) + len(content) + 16, len(headers))
    whole = prelude + struct.pack(">I", zlib.crc32(prelude)) + headers + content
    return whole + struct.pack(">I", zlib.crc32(whole))


def converse_stream(usage: Any) -> bytes:
    """Return the stream of Converse. Its text has the name of the last event's field."""
    delta = {"delta": {"text": '{"usage": {"inputTokens": 9}} '}, "contentBlockIndex": 0}
    events = [({"role": "assistant"}, "messageStart"), (delta, "contentBlockDelta"), ({"usage": usage}, "metadata")]
    return b"".join(message(payload, kind) for payload, kind in events)


def invoke_stream(usage: Any) -> bytes:
    """Return the stream of invoke: Anthropic's events in base64."""
    start = {"type": "message_start", "message": {"role": "assistant", "usage": usage}}
    events = [{"type": "ping"}, start, {"type": "message_delta", "usage": {"output_tokens": 3}}]
    return b"".join(message({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}) for event in events)


class FakeBedrock:
    """A server that caches marked prefixes for ever, and refuses marks for one model."""

    def __init__(self, server: RecordingUpstream) -> None:
        self.server = server
        self._cached: set[str] = set()
        self.answer = b""
        """The last answer."""
        server.always(self._answer)

    def _answer(self, side: UpstreamSide, request: RecordedRequest) -> None:
        body = request.json()
        try:
            prefixes = marked_prefixes(body)
        except (AttributeError, KeyError, TypeError):
            prefixes = []
        if prefixes and model_in_path("/v1" + request.target) == STRICT:
            message = b'{"message": "You invoked an unsupported model or your request did not allow prompt caching."}'
            side.send(plain(message, JSON_TYPE, status="403 Forbidden"))
            return
        marked = max(prefixes, key=len, default="")
        read = max((len(each) for each in self._cached if marked.startswith(each)), default=0)
        written = len(marked) - read
        self._cached.update(prefixes)
        counts = [round(each * TOKENS_PER_BYTE) for each in (len(request.body) - read - written, read, written)]
        invoke = "/invoke" in request.target
        usage = dict(zip(ANTHROPIC_NAMES if invoke else BEDROCK_NAMES, counts, strict=True))
        if "stream" in request.target:
            self.answer = invoke_stream(usage) if invoke else converse_stream(usage)
            side.send(plain(self.answer, f"content-type: {STREAM_TYPE}"))
        else:
            self.answer = json.dumps(
                {"output": {"message": {"role": "assistant", "content": []}}, "usage": usage}
            ).encode()
            side.send(plain(self.answer, JSON_TYPE))
