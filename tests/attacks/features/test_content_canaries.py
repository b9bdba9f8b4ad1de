"""Content of requests and answers does not reach the admin API, the metrics or the log, on normal and failing paths.

Readers are an operator without the setting `show_content`, and a read-only token with it. SECURITY.md lists what they
see of a request: its model, its tags, and parameters such as the temperature.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from knapcache.proxy.admin.openapi import ROOT
from knapcache.proxy.settings.secrets import digest_of
from tests.support.canaries import ODD, Canaries
from tests.support.proxy_process import ADMIN_TOKEN, ProxyProcess
from tests.support.recording_upstream import RecordedRequest, RecordingUpstream, UpstreamSide, plain
from tests.support.timing import wait_until

READER = "a token that may only read, of 32 characters"
REQUESTS = 20


@pytest.fixture(scope="module", params=["operator without show_content", "reader with show_content"])
def readers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with RecordingUpstream() as upstream:
        shown = "with" in request.param.split()
        settings = f"""
            show_content = {"true" if shown else "false"}
            log_level = "debug"
            admin_tokens = [{{ name = "reader", role = "read-only", digest = "{digest_of(READER)}" }}]
        """
        folder = tmp_path_factory.mktemp("data") / "proxy"
        with ProxyProcess(folder, upstream.openai_url, config=settings, semantic="shadow") as proxy:
            yield proxy, upstream, READER if shown else ADMIN_TOKEN


def has_model(client: httpx.Client, token: str) -> bool:
    """Return whether the semantic tier's embedding model is loaded."""
    return bool(client.get(f"{ROOT}/semantic", headers={"authorization": f"Bearer {token}"}).json()["embedding"])


def everything_shown(client: httpx.Client, token: str) -> dict[str, str]:
    """Return what a token reads, by path: every GET route of the API, each recent request and entry, the metrics."""
    headers = {"authorization": f"Bearer {token}"}
    found: dict[str, str] = {}

    def read(path: str) -> str:
        found[path] = client.get(path, headers=headers).text
        return found[path]

    for path, methods in client.get(f"{ROOT}/openapi.json").json()["paths"].items():
        if path.startswith(ROOT) and "get" in methods and "{" not in path:
            read(path)
    requests = json.loads(read(f"{ROOT}/requests?limit=500"))["rows"]
    for row in requests:
        read(f"{ROOT}/requests/{row['serial']}")
    for row in json.loads(read(f"{ROOT}/entries?limit=500"))["rows"]:
        read(f"{ROOT}/entries/{row['key']}")
    read("/metrics")
    read("/dashboard")
    assert len(requests) > REQUESTS
    return found


def answers(canaries: Canaries) -> list[bytes]:
    """Return responses of an upstream that are errors, or no valid answers."""
    word = canaries.word
    json_type, stream_type = "content-type: application/json", "content-type: text/event-stream"
    usage = {"prompt_tokens": word(), "completion_tokens": canaries.number(), word(): word()}
    message = {"role": "assistant", "content": word(), "tool_calls": [{"function": {"name": word()}}]}
    answer = {"id": word(), "model": "model-1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    error = json.dumps({"error": {"message": f"{word()} was not accepted", "type": word(), "code": word()}}).encode()
    return [
        *(plain(error, json_type, status=status) for status in (f"400 {word()}", "404 Not Found", "500 No")),
        plain(json.dumps(answer | {"usage": usage}).encode(), json_type),
        plain(json.dumps(answer | {"usage": {"prompt_tokens": 1, "total_tokens": word()}}).encode(), json_type),
        plain(json.dumps({"choices": [word()]}).encode(), json_type),
        plain(f'{{"{word()}": '.encode(), json_type),
        plain(word().encode(), f"content-encoding: {word()}", json_type),
        plain(word().encode(), "content-encoding: gzip", json_type),
        plain(f"event: {word()}\ndata: {word()}\n\n".encode(), stream_type),
        plain(f'data: {{"error": {{"message": "{word()}"}}}}\n\n'.encode(), stream_type),
        f"HTTP/1.1 200 OK\r\n{word()} {word()}\r\n\r\n".encode(),
        f"{word()}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\ntransfer-encoding: {word()}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{word()}\r\n".encode(),
        f"HTTP/1.1 200 OK\r\ncontent-length: {word()}\r\n\r\n".encode(),
        f"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n{word()}".encode(),
    ]


def fail(client: httpx.Client, upstream: RecordingUpstream, canaries: Canaries) -> None:
    """Send requests that have no key, are refused, or whose upstream fails."""
    word = canaries.word
    twice = word()
    bodies = [
        f'{{"model": "model-1", "{word()}": {word()}',
        f'{{"model": "model-1", "{twice}": 1, "messages": [{{"{twice}": 1, "{twice}": 2}}]}}',
        f'{{"model": "model-1", "messages": [{{"{word()}": {{"{word()}": "\\ud800"}}}}]}}',
        f'{{"model": "model-1", "messages": [{{"{word()}": 1e999999}}]}}',
        f'{{"model": "model-1", "{word()}": {"[" * 500}{"]" * 500}}}',
        f'["{word()}"]',
        f'{{"model": "model-1", "messages": "{word()}", "cache": {{"namespace": "{word()}", "tags": ["{word()} !"]}}}}',
        f'{{"model": "model-1", "messages": "{word()}", "cache": {{"namespace": "{word()}"}}}}',
        f'{{"model": "model-1", "messages": [["{word()}"]], "max_tokens": "{word()}", "n": "{word()}"}}',
    ]
    for body in bodies:
        client.post("/v1/chat/completions", content=body.encode(), headers={"content-type": "application/json"})
    chat = canaries.chat()
    for headers in ({"x-knapcache-tags": f"{word()} !"}, {"content-encoding": word()}, {"content-encoding": "gzip"},
                    {"cache-control": f"max-age={word()}"}, {"cache-control": "only-if-cached"}):  # fmt: skip
        client.post("/v1/chat/completions", content=json.dumps(chat).encode(), headers=headers)
    for path in (f"files/{word()}?{word()}={word()}", f"../{word()}", f"a%2F..%2F{word()}", word()):
        client.get(f"/v1/{path}", headers={word(): word()})
    inputs = {"model": "model-1", "input": [[word()]], word(): word()}
    client.post("/v1/embeddings", json=inputs)
    client.post("/v1/responses", json={"model": "model-1", "input": word(), "conversation": word()})
    for k, answer in enumerate(answers(canaries)):

        def script(side: UpstreamSide, _: RecordedRequest, answer: bytes = answer) -> None:
            side.send(answer)
            side.open = False

        upstream.always(script)
        client.post("/v1/chat/completions", json=canaries.chat() | {"stream": k % 2 == 1})
    upstream.always(None)


def test_no_canary_is_shown(readers: tuple[ProxyProcess, RecordingUpstream, str]) -> None:
    proxy, upstream, token = readers
    canaries = Canaries(seed=1)
    with httpx.Client(base_url=proxy.url, timeout=60) as client:
        wait_until(lambda: has_model(client, token), "the embedding model")
        for start in ODD:
            for end in ("way", "road"):
                text = f"What is the {end} to {start}{canaries.word()} and to {start}{end}, please?"
                question = {"model": "model-1", "messages": [{"role": "user", "content": text}], "temperature": 0}
                client.post("/v1/chat/completions", json=question)
        for _ in range(REQUESTS // 2):
            body = canaries.chat()
            for each in (body, canaries.changed(body), body):
                headers = {"authorization": "Bearer k", "user-agent": canaries.word(), "openai-beta": canaries.word()}
                client.post("/v1/chat/completions", json=each, headers=headers | {"x-other": canaries.word()})
        fail(client, upstream, canaries)
        (proxy.folder / "cache.sqlite").write_bytes(canaries.word().encode() * 5000)  # the store fails
        for _ in range(3):
            client.post("/v1/chat/completions", json=canaries.chat())
        found = everything_shown(client, token)
    proxy.stop()
    details = [json.loads(text) for path, text in found.items() if path.startswith(f"{ROOT}/requests/")]
    assert sum(detail["why"]["kind"] == "different" for detail in details) > 5, "differences were shown"
    assert {name: leaked for name, text in found.items() if (leaked := canaries.found_in(text))} == {}
    log = "".join(proxy.log)
    assert "request" in log
    assert [line for line in proxy.log if canaries.found_in(line)] == []
