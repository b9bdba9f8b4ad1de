"""No secret of a corpus is left in the content log: plain, escaped, split over content parts or stream chunks."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx

from knapcache.cli.main import main
from knapcache.features.content_log.file import FILE_NAME
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide, plain
from tests.support.running_proxy import RunningProxy
from tests.support.secrets_corpus import CorpusSecret, corpus, left_of

SECRETS = corpus(200, seed=1)


def halves(text: str) -> tuple[str, str]:
    """Split a secret within its random part."""
    middle = len(text) - len(text) // 3
    return text[:middle], text[middle:]


def request_with(number: int, secret: CorpusSecret) -> dict[str, object]:
    first, second = halves(secret.text)
    parts = [{"type": "text", "text": f"Look at {first}"}, {"type": "text", "text": f"{second}\nand answer"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"text": secret.text})}}
    messages = [
        {"role": "system", "content": f"It is {secret.text}"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": json.dumps(json.dumps({"text": secret.text}))},
        {"role": "user", "content": parts},
    ]
    return {"model": "m", "seed": number, "stream": True, "messages": messages}


def stream_secret(side: UpstreamSide, request: RecordedRequest) -> None:
    """Answer with the secret, split over two chunks."""
    first, second = halves(SECRETS[request.json()["seed"]].text)
    chunks: list[dict[str, object]] = [
        {"delta": {"role": "assistant", "content": f"It was {first}"}},
        {"delta": {"content": f"{second} there"}},
    ]
    chunks.append({"delta": {}, "finish_reason": "stop"})
    data = [json.dumps({"id": "i", "model": "m", "choices": [{"index": 0} | chunk]}) for chunk in chunks]
    lines = "".join(f"data: {each}\n\n" for each in [*data, "[DONE]"])
    side.send(plain(lines.encode(), "content-type: text/event-stream"))


def test_no_secret_of_the_corpus_is_left(tmp_path: Path) -> None:
    with (
        RecordingUpstream() as upstream,
        RunningProxy(tmp_path, upstream.openai_url, content_log=True) as proxy,
    ):
        upstream.always(stream_secret)
        with httpx.Client(base_url=proxy.url, timeout=60) as client:
            for number, secret in enumerate(SECRETS):
                answer = client.post("/v1/chat/completions", json=request_with(number, secret))
                assert answer.status_code == 200
    exported = tmp_path / "export.jsonl"
    main(["log", "export", "--path", str(tmp_path), "--output", str(exported), "--all"])
    lines = exported.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(SECRETS)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
        searched = str(file.execute("SELECT prompt, answer FROM texts").fetchall())
    logged = "\n".join(lines) + searched
    assert "[key]" in searched
    assert "and answer" in logged
    assert [secret for secret in SECRETS if left_of(secret, logged)] == []
