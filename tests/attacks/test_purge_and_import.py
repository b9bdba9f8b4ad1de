"""Forged import files, and tags and purges, against a running proxy.

An import file is data of an operator, and still must not give the proxy's responses other headers, make it fail, fill
its memory, or fill its capacity with entries that nothing can evict. What a forged answer says cannot be checked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from knapcache.proxy.settings.secrets import digest_of
from tests.attacks.conftest import Connect
from tests.support.raw_client import RawClient, WireResponse, chat, exchange, message
from tests.support.recording_upstream import RecordingUpstream
from tests.support.running_proxy import RunningProxy
from tests.support.timing import wait_until

VALID_KEY, OTHER_KEY = "kc-one-xxxxxxxxxxxxxxxx", "kc-two-xxxxxxxxxxxxxxxx"
Line = dict[str, Any]
Forge = Callable[[Line], Any]


@pytest.fixture(scope="module")
def proxy_settings() -> dict[str, Any]:
    names = {"one": VALID_KEY, "two": OTHER_KEY}
    return {
        "tenants": [{"name": name, "keys": [digest_of(key)]} for name, key in names.items()],
        "capacity": "4MB",
    }


def payload(line: Line, new: bytes) -> Line:
    """Return a line with another payload, and the digest of it."""
    request = line["request"].encode()
    digest = hashlib.sha256(b"%d %b%b" % (len(request), request, new)).hexdigest()[:16]
    return line | {"payload": {"base64": base64.b64encode(new).decode()}, "digest": digest}


def meta(line: Line, **fields: Any) -> Line:
    """Return a line with other metadata of its answer."""
    return line | {"meta": line["meta"] | {"meta": line["meta"]["meta"] | fields}}


def deep(line: Line) -> Line:
    """Return a line whose request has 100,000 lists within one another."""
    start = line["request"].index('{"messages"')
    request = line["request"][:start] + '{"messages":' + "[" * 100_000 + "]" * 100_000 + "}"
    return payload(line | {"request": request}, line["payload"].encode())


def bomb(size: int) -> bytes:
    """Return a stream in compact form that takes a thousandth of its length."""
    deflater = zlib.compressobj(1, wbits=-zlib.MAX_WBITS)
    check, packed = 0, []
    for _ in range(size >> 20):
        piece = b"\n" * (1 << 20)
        check = zlib.crc32(piece, check)
        packed.append(deflater.compress(piece))
    return struct.pack("<BII", 1, check, size >> 20 << 20) + b"".join(packed) + deflater.flush()


EVIL = "a\r\nx-evil: 1\r\n\r\nbody"
FORGES: dict[str, Forge] = {
    "ids with line ends": lambda line: meta(line, ids={"x-request-id": EVIL}),
    "names of ids with line ends": lambda line: meta(line, ids={f"x-request-id: {EVIL}": "1"}),
    "ids that are other headers": lambda line: meta(line, ids={"x-evil": "1", "set-cookie": "knapcache=1"}),
    "ids that are no texts": lambda line: meta(line, ids={"x-request-id": [1]}),
    "ids that are a list": lambda line: meta(line, ids=[1]),
    "a status and headers": lambda line: meta(line, status=200, headers=[["x-evil", EVIL], ["set-cookie", "a=b"]]),
    "a status of an error": lambda line: meta(line, status=418, headers=[["x-evil", "1"]]),
    "a fallback with line ends": lambda line: meta(line, fallback=EVIL),
    "a fallback that is no text": lambda line: meta(line, fallback={"a": 1}),
    "an unknown form": lambda line: meta(line, form="evil"),
    "no form": lambda line: line | {"meta": {"meta": {}}},
    "no metadata": lambda line: line | {"meta": {}},
    "metadata that is a text": lambda line: line | {"meta": {"meta": "text"}},
    "another form": lambda line: meta(line, form="sse"),
    "an empty compact form": lambda line: payload(meta(line, form="compact"), b""),
    "a compact form without an answer": lambda line: payload(meta(line, form="compact"), bomb(1 << 20)),
    "a decompression bomb": lambda line: payload(meta(line, form="compact"), bomb(300 << 20)),
    "a payload that is no JSON": lambda line: payload(line, b"\x00\xff"),
    "a payload of deep JSON": lambda line: payload(line, b"[" * 100_000),
    "a payload of other JSON": lambda line: payload(line, b'{"choices": 1}'),
    "fresh that is no number": lambda line: meta(line, fresh="x"),
    "dollars that are a text": lambda line: line | {"meta": line["meta"] | {"usd": "1\r\nx-evil: 1"}},
    "dollars below 0": lambda line: line | {"meta": line["meta"] | {"usd": -1.0}},
    "dollars without end": lambda line: line | {"meta": line["meta"] | {"usd": 1e300}},
    "tokens that are a list": lambda line: line | {"meta": line["meta"] | {"tokens": [1]}},
    "a cost without end": lambda line: line | {"cost": 1e308},
    "seconds without end": lambda line: line | {"seconds": 1e308},
    "created in a thousand years": lambda line: line | {"created": 4e10},
    "created without end": lambda line: line | {"created": 1e308},
    "expires without end": lambda line: line | {"expires": 1e308},
    "a negative cost": lambda line: line | {"cost": -1.0},
    "a long model": lambda line: line | {"model": "m" * 100_000},
    "too many tags": lambda line: line | {"meta": line["meta"] | {"tags": [f"t{k}" for k in range(100)]}},
    "tags with line ends": lambda line: line | {"meta": line["meta"] | {"tags": ["a\r\nb"]}},
    "a principal of a number": lambda line: line | {"principal": [1]},
    "requests without end": lambda line: line | {"requests": 1e308},
    "no digest": lambda line: {name: value for name, value in line.items() if name != "digest"},
    "a request that is none": lambda line: line | {"request": "x"},
    "a request of deep JSON": lambda line: deep(line),
    "a list": lambda _line: [1, 2],
    "deep JSON": lambda _line: None,
    "no UTF-8": lambda _line: None,
    "NaN": lambda _line: None,
}
RAW = {
    "deep JSON": b"[" * 200_000,
    "no UTF-8": b'{"request": "\xff\xfe"}',
    "NaN": b'{"request": "x", "payload": "y", "cost": NaN}',
}
"""Lines as bytes."""


def knapcache(*args: str, expected: int = 0) -> str:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "knapcache", *args], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == expected, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def admin(proxy: RunningProxy, path: str, **body: Any) -> WireResponse:
    token = f"Authorization: Bearer {proxy.proxy.admin_token}"
    json_type = "Content-Type: application/json"
    (response,) = exchange(
        proxy.url, message(f"POST /admin/v1/{path} HTTP/1.1", token, json_type, body=json.dumps(body).encode())
    )
    return response


def ask(client: RawClient, text: str, *headers: str, key: str = VALID_KEY, **fields: Any) -> WireResponse:
    return client.send(chat(text, *headers, key=key, **fields)).response()


def settle(proxy: RunningProxy) -> None:
    """Wait until what was admitted is in the file, where a command finds it."""
    proxy.proxy.cache.coordinator.store.flush()


def test_a_forged_file_changes_no_header_fails_no_request_and_fills_nothing(
    proxy: RunningProxy, connect: Connect, tmp_path: Path
) -> None:
    client = connect()
    folder = str(proxy.proxy.settings.path)
    for name in (*FORGES, "genuine"):
        assert ask(client, name).outcome == "miss"
    settle(proxy)
    exported = subprocess.run(
        [sys.executable, "-m", "knapcache", "export", folder], capture_output=True, timeout=120, check=True
    ).stdout.splitlines()
    assert admin(proxy, "purge", all=True).status == 200
    found = {}
    for raw in exported[1:]:
        line = json.loads(raw)
        name = json.loads(line["request"][line["request"].rindex('{"messages"') :])["messages"][0]["content"]
        found[name] = line
    lines = [RAW.get(name) or json.dumps(forge(found[name])).encode() for name, forge in FORGES.items()]
    file = tmp_path / "entries.jsonl"
    file.write_bytes(b"\n".join([exported[0], *lines, json.dumps(found["genuine"]).encode()]) + b"\n")
    report = knapcache("import", str(file), folder, "--skip-errors")
    client = connect()  # the server may have closed an idle connection
    wait_until(lambda: ask(client, "genuine", "Cache-Control: only-if-cached").status != 504, report)
    assert ask(client, "genuine", "Cache-Control: only-if-cached").outcome == "hit"
    for name in FORGES:
        for stream in (False, True, False):
            response = ask(client, name, stream=stream)
            assert response.status == 200, (name, response)
            assert (b"You " if stream else b"You said: ") in response.body, (name, response)
            names = [header for header, _ in response.headers]
            assert not {"x-evil", "set-cookie"} & set(names), (name, response)
            assert names.count("x-knapcache") == 1
    rows = proxy.proxy.cache.entries(limit=1000)["rows"]
    assert all(0 <= row["cost"] <= 1e12 and row["age"] >= 0 for row in rows), rows
    proxy.proxy.cache.check()


def test_a_line_without_end_is_refused(proxy: RunningProxy, tmp_path: Path) -> None:
    file = tmp_path / "entries.jsonl"
    header = json.dumps({"format": "knapcache entries", "version": 1, "created": 0}).encode()
    with file.open("wb") as out:
        out.write(header + b"\n")
        out.truncate(3 << 30)  # NUL bytes that take no space on the disk
    command = f"ulimit -v {4 << 20}; exec {sys.executable} -m knapcache import {file} {proxy.proxy.settings.path}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "line 2" in done.stderr


@pytest.mark.parametrize(
    "tags",
    [
        [f"t{k}" for k in range(17)], ["x" * 65], ["a\r\nb"], ["a\x00b"], [""], [["a"]], [1], {"a b": 1}, 5,
        ["é"], ["x" * 1_000_000], [f"t{k}" for k in range(50_000)], ["a" * 64] * 5000 + ["b c"], [[[[[]]]]],
    ],
    ids=range(14),
)  # fmt: skip
def test_bad_tags_in_a_body_are_refused(connect: Connect, upstream: RecordingUpstream, tags: Any) -> None:
    response = ask(connect(), "tagged", cache={"tags": tags})
    assert response.status == 400
    assert len(response.body) < 1000
    assert upstream.requests == []


def test_a_caller_cannot_purge(proxy: RunningProxy, connect: Connect) -> None:
    client = connect()
    assert ask(client, "kept", "X-Knapcache-Tags: mine").outcome == "miss"
    for path in ("/admin/v1/purge", "/v1/../admin/v1/purge", "/admin/v1/purge/", "//admin/v1/purge"):
        posted = message(
            f"POST {path} HTTP/1.1", f"Authorization: Bearer {VALID_KEY}", "Content-Type: application/json",
            body=b'{"tags": ["mine"]}',
        )  # fmt: skip
        (response,) = exchange(proxy.url, posted)
        assert response.status in (400, 401, 403, 404), path
    assert ask(client, "kept").outcome == "hit"


def test_a_purge_for_one_tenant_keeps_the_entries_of_others(proxy: RunningProxy, connect: Connect) -> None:
    """The same tag and the same system prompt of two tenants."""
    client = connect()
    system = {"messages": [{"role": "system", "content": "Clerk"}, {"role": "user", "content": "shared prompt"}]}
    for key in (VALID_KEY, OTHER_KEY):
        assert ask(client, "", "X-Knapcache-Tags: common", key=key, **system).outcome == "miss"
    namespace = {proxy.proxy.authenticator.name_of(row["tenant"]): row["tenant"] for row in
                 proxy.proxy.cache.entries(limit=1000)["rows"]}["one"]  # fmt: skip
    digest = hashlib.sha256(b"Clerk").hexdigest()[:16]
    for conditions in ({"tags": ["common"]}, {"system": digest}):
        assert admin(proxy, "purge", tenant=namespace, **conditions).status == 200
        assert ask(client, "", "X-Knapcache-Tags: common", key=OTHER_KEY, **system).outcome == "hit"
        assert ask(client, "", "X-Knapcache-Tags: common", key=VALID_KEY, **system).outcome == "miss"
    wrong: list[dict[str, Any]] = [
        {"tags": []},
        {"tags": [""]},
        {"tags": "a b"},
        {"system": ""},
        {"system": "*"},
        {"tagz": ["a"]},
    ]
    for broken in wrong:
        assert admin(proxy, "purge", **broken).status in (400, 422), broken
    assert ask(client, "", key=OTHER_KEY, **system).outcome == "hit"
