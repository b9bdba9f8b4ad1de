"""Requests whose end is ambiguous: no bytes of a body ever run as a second request."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.attacks.conftest import Connect
from tests.support.raw_client import CHAT, chat, chat_body, chunked, get, message
from tests.support.recording_upstream import RecordingUpstream

PATHS = (CHAT, "/v1/other", "/admin/v1/summary")
SMUGGLED = get("/v1/smuggled")
BODY = chat_body("framing")
SIZE = len(BODY)
CHUNKS = chunked(BODY)
CHUNKED = "Transfer-Encoding: chunked"
Attack = Callable[[str], bytes]


def post(*headers: str, body: bytes = BODY + SMUGGLED, start: str = "POST {} HTTP/1.1") -> Attack:
    """Return the bytes of a request to a path, with these headers and no content-length of its own."""

    def attack(path: str) -> bytes:
        fixed = ("Authorization: Bearer k", "Content-Type: application/json")
        return message(start.format(path), *fixed, *headers, body=body, length=False)

    return attack


def length(value: object) -> Attack:
    return post(f"Content-Length: {value}")


def coding(value: str, *more: str) -> Attack:
    return post(f"Transfer-Encoding: {value}", *more, body=CHUNKS + SMUGGLED)


def chunks(raw: bytes) -> Attack:
    return post(CHUNKED, body=raw + SMUGGLED)


def header(line: str) -> Attack:
    return post(line, f"Content-Length: {SIZE}")


def start(line: str) -> Attack:
    return post(f"Content-Length: {SIZE}", start=line)


def replaced(old: bytes, new: bytes) -> Attack:
    return lambda path: header("X: y")(path).replace(old, new)


REFUSED: dict[str, Attack] = {
    "content-length and chunked": post(f"Content-Length: {len(CHUNKS)}", CHUNKED, body=CHUNKS + SMUGGLED),
    "chunked and content-length": post(CHUNKED, "Content-Length: 4", body=CHUNKS + SMUGGLED),
    "two different lengths": post(f"Content-Length: {SIZE}", f"Content-Length: {SIZE + len(SMUGGLED)}"),
    "two equal lengths": post(f"Content-Length: {SIZE}", f"Content-Length: {SIZE}"),
    "list of equal lengths": length(f"{SIZE}, {SIZE}"),
    "list of different lengths": length(f"{SIZE}, 3"),
    "length with plus": length(f"+{SIZE}"),
    "negative length": length(f"-{SIZE}"),
    "hexadecimal length": length(hex(SIZE)),
    "length with underscore": length("1_0"),
    "length with inner space": length("1 0"),
    "empty length": length(""),
    "length with a decimal point": length(f"{SIZE}.0"),
    "length over 64 bits": length((1 << 64) + SIZE),
    "length in other digits": length("\xb2\xb3"),
    "length after a vertical tab": length(f"\x0b{SIZE}"),
    "space before the colon of length": post(f"Content-Length : {SIZE}"),
    "chunked, identity": coding("chunked, identity"),
    "identity, chunked": coding("identity, chunked"),
    "gzip, chunked": coding("gzip, chunked"),
    "chunked, chunked": coding("chunked, chunked"),
    ", chunked": coding(", chunked"),
    "xchunked": coding("xchunked"),
    "chunkedx": coding("chunkedx"),
    "identity": coding("identity"),
    "quoted chunked": coding('"chunked"'),
    "chunked with a parameter": coding("chunked;q=1"),
    "empty coding": coding(""),
    "empty coding and length": post("Transfer-Encoding:", f"Content-Length: {SIZE}"),
    "identity and length": post("Transfer-Encoding: identity", f"Content-Length: {SIZE}"),
    "vertical tab before chunked": coding("\x0bchunked"),
    "space before the colon of chunked": header("Transfer-Encoding : chunked"),
    "tab before the colon of chunked": header("Transfer-Encoding\t: chunked"),
    "chunked twice": coding("chunked", CHUNKED),
    "chunked, then identity": coding("chunked", "Transfer-Encoding: identity"),
    "identity, then chunked": coding("identity", CHUNKED),
    "line feeds only": replaced(b"\r\n", b"\n"),
    "line feed inside a header": header("X: y\nTransfer-Encoding: chunked"),
    "carriage return inside a header": header("X: y\rTransfer-Encoding: chunked"),
    "line feeds after the head": replaced(b"\r\n\r\n", b"\n\n"),
    "mixed line ends after the head": replaced(b"\r\n\r\n", b"\r\n\n"),
    "folded header": header("X: a\r\n b"),
    "folded chunked": coding("\r\n chunked"),
    "folded first header": replaced(b"Host:", b" Host:"),
    "NUL in a value": header("X: a\0b"),
    "NUL in a name": header("X\0Y: a"),
    "control character in a value": header("X: a\x01b"),
    "delete character in a value": header("X: a\x7fb"),
    "empty name": header(": a"),
    "header without colon": header("nonsense"),
    "space in a name": header("X Y: a"),
    "name beyond ASCII": header("X\xe9: a"),
    "negative chunk": chunks(b"-5\r\nhello\r\n0\r\n\r\n"),
    "chunk size with 0x": chunks(b"0x5\r\nhello\r\n0\r\n\r\n"),
    "chunk size with plus": chunks(b"+5\r\nhello\r\n0\r\n\r\n"),
    "chunk size over 64 bits": chunks(b"10000000000000005\r\nhello\r\n0\r\n\r\n"),
    "chunk size with space": chunks(b"5 \r\nhello\r\n0\r\n\r\n"),
    "chunk size after a space": chunks(b" 5\r\nhello\r\n0\r\n\r\n"),
    "chunk size with underscore": chunks(b"1_0\r\nhello\r\n0\r\n\r\n"),
    "no chunk size": chunks(b"\r\nhello\r\n0\r\n\r\n"),
    "chunk size before a line feed": chunks(b"5\nhello\r\n0\r\n\r\n"),
    "chunk size before a carriage return": chunks(b"5\rXhello\r\n0\r\n\r\n"),
    "chunk without its line end": chunks(b"5\r\nhello0\r\n\r\n"),
    "chunk before a line feed": chunks(b"5\r\nhello\n0\r\n\r\n"),
    "chunk longer than its size": chunks(b"5\r\nhelloXX0\r\n\r\n"),
    "chunk extension before a line feed": chunks(b"5;a\nhello\r\n0\r\n\r\n"),
    "carriage return in a chunk extension": chunks(b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "NUL in a chunk extension": chunks(b"5;a\0b\r\nhello\r\n0\r\n\r\n"),
    "line feeds after the last chunk": chunks(b"5\r\nhello\r\n0\n\n"),
    "malformed trailer": chunks(CHUNKS[:-2] + b"no trailer\r\n\r\n"),
    "HTTP/0.9": lambda path: f"GET {path}\r\n\r\n".encode() + SMUGGLED,
    "HTTP/0.9 with headers": start("POST {} HTTP/0.9"),
    "HTTP/1.2": start("POST {} HTTP/1.2"),
    "HTTP/1.10": start("POST {} HTTP/1.10"),
    "HTTP/2.0": start("POST {} HTTP/2.0"),
    "HTTP/11": start("POST {} HTTP/11"),
    "http/1.1": start("POST {} http/1.1"),
    "HTTP/2 preface": lambda _: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "TLS": lambda _: bytes.fromhex("16030100a5010000a10303") + bytes(100),
    "tabs in the start line": start("POST\t{}\tHTTP/1.1"),
    "space in the path": start("POST {} x HTTP/1.1"),
    "line feed in the path": start("POST {}\nX-Evil: 1 HTTP/1.1"),
    "carriage return in the path": start("POST {}\rX-Evil:1 HTTP/1.1"),
    "NUL in the path": start("POST {}\0 HTTP/1.1"),
    "control character in the path": start("POST {}\x01 HTTP/1.1"),
    "path beyond ASCII": start("POST {}\xe9 HTTP/1.1"),
    "path with user and host": start("POST @evil.example{} HTTP/1.1"),
    "space before the method": start(" POST {} HTTP/1.1"),
    "lower-case method": start("post {} HTTP/1.1"),
    "unknown method": start("FROB {} HTTP/1.1"),
    "CONNECT": lambda _: b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n" + SMUGGLED,
    "CONNECT to a path": post(body=SMUGGLED, start="CONNECT {} HTTP/1.1"),
    "CONNECT with a body": start("CONNECT {} HTTP/1.1"),
    "Upgrade with a body": post(
        "Upgrade: h2c", "Connection: Upgrade", f"Content-Length: {len(SMUGGLED)}", body=SMUGGLED
    ),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("attack", REFUSED.values(), ids=REFUSED.keys())
def test_an_ambiguous_request_is_refused_and_its_connection_closed(
    attack: Attack, path: str, connect: Connect, upstream: RecordingUpstream
) -> None:
    responses = connect().send(attack(path)).responses_until_close()
    assert len(responses) <= 1
    assert all(400 <= response.status < 600 and response.status != 500 for response in responses), responses
    assert upstream.targets == []


ACCEPTED: dict[str, Attack] = {
    "plain": length(SIZE),
    "length with leading zeros": length(f"000{SIZE}"),
    "length before a tab": length(f"{SIZE}\t"),
    "chunked": coding("chunked"),
    "upper-case chunked": coding("CHUNKED"),
    "chunk extension": post(CHUNKED, body=b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (SIZE, BODY) + SMUGGLED),
    "trailer": post(CHUNKED, body=CHUNKS[:-2] + b"X-Trailer: y\r\n\r\n" + SMUGGLED),
    "underscores in a name": header("Transfer_Encoding: chunked"),
    "another name that ends alike": header("X-Transfer-Encoding: chunked"),
}


@pytest.mark.parametrize("path", PATHS[:2])
@pytest.mark.parametrize("attack", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_the_next_request_begins_after_the_body(
    attack: Attack, path: str, connect: Connect, upstream: RecordingUpstream
) -> None:
    client = connect().send(attack(path))
    first, second = client.responses(2)
    assert first.status == second.status == 200
    assert second.json()["target"] == "/v1/smuggled"
    assert upstream.targets[-1] == "GET /v1/smuggled"
    assert [request.body for request in upstream.requests if request.target == path] in ([BODY], []), "[]: a hit"
    assert not any(name.startswith("x-trailer") for request in upstream.requests for name, _ in request.headers)


LAST_REQUESTS: dict[str, Attack] = {
    "HTTP/1.0": post(f"Content-Length: {SIZE}", start="POST {} HTTP/1.0"),
    "HTTP/1.0 and keep-alive": post(f"Content-Length: {SIZE}", "Connection: keep-alive", start="POST {} HTTP/1.0"),
    "connection: close": post("Connection: close", f"Content-Length: {SIZE}"),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("attack", LAST_REQUESTS.values(), ids=LAST_REQUESTS.keys())
def test_nothing_follows_the_last_request_of_a_connection(
    attack: Attack, path: str, connect: Connect, upstream: RecordingUpstream
) -> None:
    assert len(connect().send(attack(path)).responses_until_close()) == 1
    assert "GET /v1/smuggled" not in upstream.targets


UNFINISHED: dict[str, Attack] = {
    "half a head": lambda path: header("X: y")(path)[:60],
    "half a body": lambda path: length(SIZE)(path)[: -len(SMUGGLED) - 5],
    "largest length": length((1 << 64) - 1),
    "largest chunk": chunks(b"ffffffffffffffff\r\n"),
    "chunk over 32 bits": chunks(b"100000005\r\nhello\r\n0\r\n\r\n"),
    "no last chunk": chunks(CHUNKS[:-5]),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("attack", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_an_unfinished_request_reaches_no_one(
    attack: Attack, path: str, connect: Connect, upstream: RecordingUpstream
) -> None:
    client = connect().send(attack(path)).end()
    assert all(response.status >= 400 for response in client.responses_until_close())
    assert upstream.targets == []


SENT_ELSEWHERE: dict[str, str] = {
    "absolute form": "POST http://evil.example{} HTTP/1.1",
    "absolute form of https": "POST https://evil.example{} HTTP/1.1",
    "absolute form with user": "POST http://127.0.0.1@evil.example{} HTTP/1.1",
    "two slashes": "POST //evil.example{} HTTP/1.1",
    "back slashes": "POST /\\evil.example{} HTTP/1.1",
    "encoded slashes": "POST /%2f%2fevil.example{} HTTP/1.1",
    "encoded line break": "POST {}%0d%0aX-Evil:%201%0d%0a HTTP/1.1",
    "encoded line break in the query": "POST {}?a=%0d%0aX-Evil:%201%0d%0a HTTP/1.1",
    "encoded NUL": "POST {}%00 HTTP/1.1",
    "asterisk": "OPTIONS * HTTP/1.1",
}


@pytest.mark.parametrize("path", PATHS[:2])
@pytest.mark.parametrize("line", SENT_ELSEWHERE.values(), ids=SENT_ELSEWHERE.keys())
def test_the_request_target_names_no_other_host_and_adds_no_header(
    line: str, path: str, connect: Connect, upstream: RecordingUpstream
) -> None:
    (response,) = connect().send(post(f"Content-Length: {SIZE}", body=BODY, start=line)(path)).responses(1)
    assert response.status in (200, 400, 404, 405, 421)
    for request in upstream.requests:
        assert request.target.startswith(path)
        assert "evil" not in request.target.lower().replace("x-evil:%201", "")
        assert not request.values("x-evil")
        assert request.values("host") == [upstream.url.removeprefix("http://")]


@pytest.mark.parametrize("method", ["TRACE", "TRACK"])
def test_methods_that_echo_headers_do_not_reach_the_upstream(
    method: str, connect: Connect, upstream: RecordingUpstream
) -> None:
    (response,) = connect().send(message(f"{method} /v1/models HTTP/1.1", "Authorization: Bearer k")).responses(1)
    assert 400 <= response.status < 500
    assert upstream.targets == []


def test_pipelined_hits_and_misses_are_answered_in_order(connect: Connect, upstream: RecordingUpstream) -> None:
    client = connect()
    for k in range(3):
        assert [r.status for r in client.send(chat(f"warm {k}") * 2).responses(2)] == [200, 200]
    upstream.clear()
    upstream.delay = 0.02
    texts = [f"warm {k % 3}" if k % 2 else f"cold {k}" for k in range(40)]
    sent = b"".join(map(chat, texts))
    client.send(*(sent[k : k + 1000] for k in range(0, len(sent), 1000)))
    found = client.responses(40)
    assert [response.text for response in found] == [f"You said: {text}" for text in texts]
    assert [response.outcome for response in found] == ["hit" if k % 2 else "miss" for k in range(40)]
    assert len(upstream.requests) == 20


def test_pipelined_requests_of_all_kinds_are_answered_in_order(connect: Connect, upstream: RecordingUpstream) -> None:
    client = connect()
    upstream.pace = 0.002
    client.send(
        chat("stream", stream=True),
        get("/v1/one"),
        chat("plain"),
        get("/healthz"),
        chat("stream", stream=True),
        get("/v1/two"),
    )
    found = client.responses(6)
    assert [response.status for response in found] == [200] * 6
    assert found[0].body.endswith(b"data: [DONE]\n\n")
    assert found[4].body.endswith(b"data: [DONE]\n\n")
    assert [found[1].json()["target"], found[5].json()["target"]] == ["/v1/one", "/v1/two"]
    assert found[2].text == "You said: plain"


def test_a_refused_request_ends_a_pipeline(connect: Connect, upstream: RecordingUpstream) -> None:
    client = connect().send(chat("before the refusal") + REFUSED["chunked, identity"](CHAT) + chat("after the refusal"))
    statuses = [response.status for response in client.responses_until_close()]
    assert statuses in ([200, 400], [200], [400], [])
    assert len(upstream.requests) <= 1
