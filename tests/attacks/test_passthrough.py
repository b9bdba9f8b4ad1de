"""Paths that are not cached: a caller without a provider key has no power over what others have stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import digest_of
from knapcache.proxy.settings.value_types import PASSTHROUGH
from tests.support.raw_client import exchange, get, message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy

VALID_KEY = "kc-alice-xxxxxxxxxxxxxxxx"
PROVIDERS_KEY = "sk-the-providers-own"


@pytest.fixture(scope="module")
def proxy_settings(upstream: RecordingUpstream) -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROVIDERS_KEY", PROVIDERS_KEY)
        yield {
            "tenants": [{"name": "alice", "keys": [digest_of(VALID_KEY)]}],
            "upstreams": [{"name": "fake", "url": upstream.openai_url, "key_env": "PROVIDERS_KEY"}],
        }


@pytest.fixture(scope="module")
def open_proxy(upstream: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """A proxy without tenants and without a provider key: callers bring their own."""
    with RunningProxy(tmp_path_factory.mktemp("open"), upstream.openai_url) as proxy:
        yield proxy


def request(start: str, *headers: str, body: bytes = b"") -> bytes:
    length = bool(body) or start.startswith(("POST", "PUT", "PATCH"))
    return message(f"{start} HTTP/1.1", f"Authorization: Bearer {VALID_KEY}", *headers, body=body, length=length)


DENIED = [
    "GET /v1/files", "POST /v1/files", "DELETE /v1/files/file-1", "GET /v1/files/file-1/content", "GET /v1/batches",
    "POST /v1/batches", "GET /v1/fine_tuning/jobs", "DELETE /v1/models/ft:x", "GET /v1/organization/admin_api_keys",
    "POST /v1/organization/admin_api_keys", "GET /v1/responses/resp_1", "DELETE /v1/responses/resp_1",
    "GET /v1/responses/resp_1/input_items", "POST /v1/responses/resp_1/cancel", "GET /v1/chat/completions",
    "GET /v1/chat/completions/chatcmpl-1", "POST /v1/chat/completions/chatcmpl-1", "GET /v1/conversations/conv_1",
    "GET /v1/vector_stores", "POST /v1/assistants", "GET /v1/messages/batches", "POST /v1/realtime/client_secrets",
    "HEAD /v1/files", "OPTIONS /v1/files", "PUT /v1/models", "GET /v1/%66iles", "GET /v1/modelsfiles", "GET /v1/",
]  # fmt: skip


@pytest.mark.parametrize("start", DENIED)
def test_a_tenant_cannot_reach_what_others_have_stored(
    proxy: RunningProxy, upstream: RecordingUpstream, start: str
) -> None:
    (found,) = exchange(proxy.url, request(start), method=start.split()[0])
    assert found.status == 403
    assert upstream.targets == []
    if not start.startswith("HEAD"):
        assert found.json()["error"]["type"] == "passthrough_not_allowed"
        assert "`passthrough`" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    "start", ["GET /v1/models", "GET /v1/models/org%2Fname", "POST /v1/moderations", "POST /v1/audio/speech"]
)
def test_requests_that_only_compute_something_pass(
    proxy: RunningProxy, upstream: RecordingUpstream, start: str
) -> None:
    (found,) = exchange(proxy.url, request(start, body=b'{"input": "a"}' if start[0] == "P" else b""))
    assert (found.status, found.outcome) == (200, "passthrough")
    assert upstream.targets == [start]
    assert upstream.requests[0].values("authorization") == [f"Bearer {PROVIDERS_KEY}"]


AMBIGUOUS = [
    "/v1/models/../files", "/v1/models/%2e%2e/files", "/v1/models/%2E./files", "/v1/models/..%2ffiles",
    "/v1/models%2f..%2ffiles", "/v1/models/%2e%2e%2ffiles", "/v1/models/..%5cfiles", "/v1/models/..\\files",
    "/v1/models//files", "/v1//files", "/v1/models/%2ffiles", "/v1/models/%252e%252e/files",
    "/v1/models/%25252e%25252e/files", "/v1/models/..;/files", "/v1/models/..;x=1/files", "/v1/models/%00",
    "/v1/models/a%0d%0aX-Evil:%201", "/v1/models/%7f", "/v1/models/%c0%ae%c0%ae/files", "/v1/../admin", "/v1/..",
    "/v1/models/.", "/v1/./files", "/v1/models/%2e", "/v1/models/../../../etc/passwd",
]  # fmt: skip


@pytest.mark.parametrize("path", AMBIGUOUS)
def test_a_path_that_the_upstream_may_read_as_another_is_refused(
    proxy: RunningProxy, open_proxy: RunningProxy, upstream: RecordingUpstream, path: str
) -> None:
    for each in (proxy, open_proxy):
        (found,) = exchange(each.url, get(path, key=VALID_KEY), method="GET")
        assert found.status == 400, found
    assert upstream.targets == []


NEAR_PATHS = [
    "/v1/chat/completions/", "/v1/Chat/Completions", "/v1/chat/completions;a=b", "/v1/chat;a/completions",
    "/v1/chat%252Fcompletions", "/v1/chat/completions%2F", "/v1/chat/completions.", "/v1/chat/completions%20",
    "/v1/chat/completions%3Fa", "/v1/;a/chat/completions", "/v1/v1/chat/completions", "/v1/chat/completion%C5%BF",
    "/v1/Responses", "/v1/messages/", "/v1/EMBEDDINGS", "/v1/completions;",
]  # fmt: skip
"""Paths that some server may read as one whose answers are cached."""


@pytest.mark.parametrize("path", NEAR_PATHS)
def test_a_path_that_is_nearly_one_of_a_cached_endpoint_is_refused(
    proxy: RunningProxy, open_proxy: RunningProxy, upstream: RecordingUpstream, path: str
) -> None:
    for each in (proxy, open_proxy):
        (found,) = exchange(each.url, request(f"POST {path}", body=b'{"model": "m", "messages": []}'))
        assert found.status == 400, found
        assert found.json()["error"]["type"] == "invalid_path"
        assert "spelled exactly" in found.json()["error"]["message"]
    assert upstream.targets == []


@pytest.mark.parametrize(
    "path",
    ["/v1/files/File-AbC;v=1", "/v1/batches/Chat/Completions", "/v1/threads/T/messages", "/v1/chat/completions/ID/"],
)
def test_other_paths_keep_their_spelling(open_proxy: RunningProxy, upstream: RecordingUpstream, path: str) -> None:
    (found,) = exchange(open_proxy.url, request(f"POST {path}", body=b"{}"))
    assert found.status == 200
    assert upstream.targets == [f"POST {path}"]


def test_headers_cannot_name_another_method_or_path(proxy: RunningProxy, upstream: RecordingUpstream) -> None:
    tricks = ("X-HTTP-Method-Override: DELETE", "X-HTTP-Method: GET", "X-Original-URL: /v1/files",
              "X-Rewrite-URL: /v1/files")  # fmt: skip
    (found,) = exchange(proxy.url, request("POST /v1/moderations", *tricks, body=b"{}"))
    assert found.status == 200
    sent = {name for name, _ in upstream.requests[0].headers}
    assert sent.isdisjoint(trick.split(":")[0].lower() for trick in tricks)


@pytest.mark.parametrize("start", ["GET /v1/files", "DELETE /v1/files/a%2Fb?x=1", "GET /v1/responses/resp_1"])
def test_a_caller_with_its_own_key_may_send_everything(
    open_proxy: RunningProxy, upstream: RecordingUpstream, start: str
) -> None:
    (found,) = exchange(open_proxy.url, request(start), method=start.split()[0])
    assert found.status == 200
    assert upstream.targets == [start]
    assert upstream.requests[0].values("authorization") == [f"Bearer {VALID_KEY}"]


def test_the_default_depends_on_who_can_use_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", PROVIDERS_KEY)
    tenants = [{"name": "alice", "keys": ["sha256:" + "0" * 64]}]
    assert Settings().passthrough == ("*",)
    assert Settings(tenants=tenants).passthrough == PASSTHROUGH
    assert Settings(host="0.0.0.0", allow_anonymous=True).passthrough == PASSTHROUGH


@pytest.mark.parametrize("pattern", ["GET", "/v1/models", "get /v1/models", "GET /files", "GET  /v1/x", "GET /v1/x y"])
def test_patterns_of_requests_are_checked_at_the_start(pattern: str) -> None:
    with pytest.raises(InvalidInput, match=r"passthrough.*GET /v1/models"):
        Settings(passthrough=[pattern])


def test_the_setting_selects_what_passes(upstream: RecordingUpstream, tmp_path_factory: pytest.TempPathFactory) -> None:
    for patterns, passing in (
        ((), set()),
        (["* /v1/files/*"], {"/v1/files/f"}),
        (["*"], {"/v1/files/f", "/v1/models"}),
    ):
        settings: dict[str, Any] = {"upstreams": [{"url": upstream.openai_url, "headers": {"api-key": "azure"}}]}
        settings |= {"policy": "lru", "memory_only": True, "passthrough": patterns}
        with RunningProxy(tmp_path_factory.mktemp("d"), "", **settings) as own:
            for path in ("/v1/files/f", "/v1/models"):
                (found,) = exchange(own.url, get(path), method="GET")
                assert (found.status == 200) == (path in passing), (patterns, path)


@pytest.mark.parametrize(
    "target",
    [
        "http://evil.example/v1/models", "http://169.254.169.254/v1/models", "//evil.example/v1/models",
        "/v1/models@evil.example/", "/v1@evil.example/models", "/\\evil.example/v1/models", "evil.example:80",
        "http://127.0.0.1@evil.example/v1/models", "/v1/http://evil.example/",
    ],
)  # fmt: skip
def test_no_target_names_another_upstream(proxy: RunningProxy, upstream: RecordingUpstream, target: str) -> None:
    found = exchange(proxy.url, get(target, key=VALID_KEY), method="GET")
    for sent in upstream.requests:
        assert sent.values("host") == [upstream.url.removeprefix("http://")]
        assert sent.target.startswith("/v1/")
    assert not found or found[0].status in (200, 400, 401, 403, 404, 421)
    assert not found or b"evil" not in (found[0].header("location") or "").encode()
