"""HTTP/1.1 to providers: how bodies end, wherever they are cut, and what becomes of their connections."""

from __future__ import annotations

import asyncio
import gc
import gzip
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knapcache.errors import UpstreamFailed
from knapcache.serve.upstream import client as pool
from knapcache.serve.upstream import connection
from knapcache.serve.upstream.client import Client, lines, split
from tests.support.scripted_server import OK, Pair, Run, Talk, forever, judged, once, pair, run, until

__all__ = ["run"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends its connection does so by itself, not because nobody reads on."""
    monkeypatch.setattr(connection, "LINGER", 60.0)


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKS = b"transfer-encoding: chunked\r\n\r\n"
# What is said, whether the connection may be used again, and the method.
WHOLE = {
    "length": (HEAD + b"Content-Length: 5\r\nx-one:two\r\n\r\nhello", True, "GET"),
    "length none": (HEAD + b"content-length: 0\r\n\r\n", True, "GET"),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 1\r\n\r\nx", True, "GET"),
    "chunked": (HEAD + CHUNKS + b"5\r\nhello\r\n1\r\n \r\nA\r\nworld\r\n!!!\r\n0\r\n\r\n", True, "GET"),
    "extensions": (HEAD + CHUNKS + b'5;a="b";c\r\nhello\r\n0;last=1\r\n\r\n', True, "GET"),
    "trailers": (HEAD + CHUNKS + b"2\r\nhi\r\n0\r\nx-sum: 12\r\nx-more:\r\n\r\n", True, "GET"),
    "empty chunks": (HEAD + CHUNKS + b"0\r\n\r\n", True, "GET"),
    "no content": (b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n", True, "GET"),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", True, "GET"),
    "head": (HEAD + b"content-length: 5\r\n\r\n", False, "HEAD"),
    "head chunked": (HEAD + CHUNKS, False, "HEAD"),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 2\r\n\r\nhi", True, "POST"),
    "early hints": (
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 3 + HEAD + CHUNKS + b"2\r\nhi\r\n0\r\n\r\n", True, "GET"
    ),
    "upgrade offered": (HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi", True, "GET"),
    "error": (b"HTTP/1.1 529 Overloaded\r\ncontent-length: 4\r\n\r\nbusy", True, "GET"),
    "close": (HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nhi", False, "GET"),
    "old": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", False, "GET"),
    "old, keeps": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nhi", True, "GET"),
}  # fmt: skip
TO_THE_END = {
    "to the end": HEAD + b"content-type: text/plain\r\n\r\nall of it",
    "old, to the end": b"HTTP/1.0 200 OK\r\n\r\nall of it",
}


class Script:
    """What is said next, and whether that was the end."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.leave = False

    async def play(self, talk: Talk) -> None:
        while True:
            await talk.asked()
            await talk.say(*self.pieces)
            if self.leave:
                return


def cuts(sent: bytes) -> list[list[bytes]]:
    """In two, at every place; and byte by byte."""
    return [[sent[:k], sent[k:]] for k in range(1, len(sent))] + [[sent[k : k + 1] for k in range(len(sent))]]


@pytest.mark.parametrize("kind", WHOLE)
def test_bodies_wherever_they_are_cut(run: Run, kind: str) -> None:
    sent, again, method = WHOLE[kind]
    wanted = judged(method, sent, ended=False)
    assert wanted is not None

    async def scenario() -> None:
        script = Script()
        async with pair(script.play) as both:
            for count, pieces in enumerate(cuts(sent), 1):
                script.pieces = pieces
                assert await both.get(method=method) == wanted, pieces
                await until(lambda: len(both.client) == again)
                assert both.server.taken == (1 if again else count)

    run(scenario())


@pytest.mark.parametrize("kind", TO_THE_END)
def test_bodies_to_the_end_of_the_connection(run: Run, kind: str) -> None:
    sent = TO_THE_END[kind]
    wanted = judged("GET", sent, ended=True)
    assert wanted == (200, b"all of it")

    async def scenario() -> None:
        script = Script()
        script.leave = True
        async with pair(script.play) as both:
            for pieces in cuts(sent):
                script.pieces = pieces
                assert await both.get() == wanted
                await until(lambda: not len(both.client))

    run(scenario())


@pytest.mark.parametrize("kind", [*WHOLE, *TO_THE_END])
def test_answers_that_are_cut_off_are_no_answers(run: Run, kind: str) -> None:
    sent, _, method = WHOLE[kind] if kind in WHOLE else (TO_THE_END[kind], False, "GET")

    async def scenario() -> None:
        script = Script()
        script.leave = True
        async with pair(script.play) as both:
            for k in range(len(sent)):
                script.pieces = [sent[:k]]
                wanted = judged(method, sent[:k], ended=True)
                if wanted is not None:
                    assert await both.get(method=method) == wanted, sent[:k]
                else:
                    with pytest.raises(UpstreamFailed) as told:
                        await both.get(method=method)
                    assert (told.value.status, told.value.before) == (502, k == 0)
                await until(lambda: not len(both.client))

    run(scenario())


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_chunks_in_any_pieces(data: st.DataObject) -> None:
    chunks = data.draw(st.lists(st.binary(min_size=1, max_size=400), max_size=8))
    sent = HEAD + CHUNKS + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    places = sorted(data.draw(st.lists(st.integers(1, len(sent) - 1), max_size=6, unique=True)))
    pieces = [sent[a:b] for a, b in zip([0, *places], [*places, len(sent)], strict=True)]

    async def scenario() -> None:
        async with pair(forever(*pieces)) as both:
            for _ in range(2):
                assert await both.get() == judged("GET", sent, ended=False) == (200, b"".join(chunks))
            assert both.server.taken == 1

    asyncio.run(scenario())


def test_headers_are_those_of_the_answer(run: Run) -> None:
    sent = b"HTTP/1.1 103 Early Hints\r\nlink: no\r\n\r\n" + HEAD + b"X-A: 1\r\nx-a: 2\r\n" + CHUNKS
    sent += b"0\r\nx-b: no\r\n\r\n"

    async def scenario() -> None:
        async with pair(forever(sent)) as both:
            response = await both.ask()
            assert response.pairs == [("X-A", "1"), ("x-a", "2"), ("transfer-encoding", "chunked")]
            assert response.headers == {"x-a": "2", "transfer-encoding": "chunked"}
            assert await response.read() == b""

    run(scenario())


def test_what_is_sent(run: Run) -> None:
    seen: list[Any] = []

    async def play(talk: Talk) -> None:
        while True:
            seen.append(await talk.asked())
            await talk.say(OK)

    async def upload() -> Any:
        for piece in (b"a" * 10, b"", b"b" * 70000):
            yield piece

    async def scenario() -> None:
        async with pair(play) as both:
            await both.get("/a?b=c%20d")
            await both.get(method="POST", content=b"x" * 100)
            await both.get(method="POST", content=b"x" * 200_000)
            await both.get(method="PUT", content=upload())
            await both.get(method="PUT", content=upload(), headers=[("content-length", "70010")], raw=True)
            assert both.server.taken == 1
            host = both.server.url.removeprefix("http://")
        base = {"host": host, "x-test": "1"}
        packed = {"accept-encoding": "gzip"}
        assert seen[0] == ("GET", "/a?b=c%20d", base | packed, b"")
        assert seen[1] == ("POST", "/", base | packed | {"content-length": "100"}, b"x" * 100)
        assert seen[2].body == b"x" * 200_000
        assert seen[3] == ("PUT", "/", base | packed | {"transfer-encoding": "chunked"}, b"a" * 10 + b"b" * 70000)
        assert seen[4] == ("PUT", "/", base | {"content-length": "70010"}, b"a" * 10 + b"b" * 70000)

    run(scenario())


# Connections.

AFTER = {
    "more of it": OK + b"!",
    "garbage": OK + b"GARBAGE\r\n\r\n",
    "another answer": OK + OK,
    "the beginning of another": OK + b"H",
    "after close": HEAD + b"connection: close\r\ncontent-length: 2\r\n\r\nhi" + OK,
    "after chunks": HEAD + CHUNKS + b"2\r\nhi\r\n0\r\n\r\n5\r\nhello\r\n",
    "a body where there is none": b"HTTP/1.1 204 No Content\r\n\r\nhi",
}


@pytest.mark.parametrize("kind", AFTER)
def test_bytes_after_the_answer_end_its_connection(run: Run, kind: str) -> None:
    async def scenario() -> None:
        async with pair(forever(AFTER[kind])) as both:
            for count in (1, 2, 3):
                response = await both.ask()
                assert await response.read() == (b"" if "none" in kind else b"hi")
                await until(lambda: not len(both.client))  # whether it is let go of or not
                assert both.server.taken == count

    run(scenario())


def test_what_comes_on_a_connection_that_waits_ends_it(run: Run) -> None:
    async def play(talk: Talk) -> None:
        await talk.asked()
        await talk.say(OK)
        await asyncio.sleep(0.02)
        await talk.say(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nbad")
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            assert await both.get() == (200, b"hi")
            assert len(both.client) == 1
            await until(lambda: not len(both.client))
            assert await both.get() == (200, b"hi")
            assert both.server.taken == 2

    run(scenario())


@pytest.mark.parametrize("outcome", ["closed", "reset"])
def test_a_connection_that_the_server_ends_while_it_waits_is_not_used(run: Run, outcome: str) -> None:
    async def play(talk: Talk) -> None:
        await talk.asked()
        await talk.say(OK)
        if outcome == "reset":
            talk.reset()

    async def scenario() -> None:
        async with pair(play) as both:
            for count in (1, 2, 3):
                assert await both.get() == (200, b"hi")
                await until(lambda: not len(both.client))
                assert both.server.taken == count

    run(scenario())


def test_connections_that_wait_for_too_long_are_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "KEEP", 0.15)

    async def scenario() -> None:
        async with pair(forever(OK)) as both:
            await asyncio.gather(*(both.get() for _ in range(5)))
            assert len(both.client) == 5
            for _ in range(10):  # one of them is in use, the others grow old
                await asyncio.sleep(0.03)
                assert await both.get() == (200, b"hi")
            assert len(both.client) == 1
            await until(lambda: not len(both.client))
            await until(lambda: not both.server.open)
            assert both.server.taken == 5
            assert await both.get() == (200, b"hi")  # and the sweeper comes again
            await until(lambda: not len(both.client))

    run(scenario())


def test_the_end_of_a_client(run: Run) -> None:
    async def play(talk: Talk) -> None:
        while (await talk.asked()).target == "/":
            await talk.say(OK)
        await talk.gone()

    async def scenario() -> None:
        async with pair(play) as both:
            await asyncio.gather(both.get(), both.get())
            waiting = asyncio.create_task(both.get("/never"))
            await asyncio.sleep(0.02)
            assert len(both.client) == 2
            both.client.close()
            with pytest.raises(UpstreamFailed, match="broke off"):
                await waiting
            await until(lambda: not len(both.client))
            async with asyncio.timeout(2):  # whoever comes later is told, and does not wait
                with pytest.raises(UpstreamFailed):
                    await both.get()

    run(scenario())


@pytest.mark.parametrize("kind", ["length", "close", "to the end", "chunked", "packed", "broken", "after", "unread"])
def test_nothing_keeps_a_response_when_it_is_over(run: Run, kind: str) -> None:
    packed = gzip.compress(b"hi")
    sent = {
        "packed": HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed,
        "broken": HEAD + b"content-length: 9\r\n\r\nhi",
        "after": OK + b"x",
        "unread": OK,
        "to the end": TO_THE_END["to the end"],
    }.get(kind) or WHOLE[kind][0]

    async def scenario() -> None:
        async with pair(once(sent)) as both:
            response = await both.ask()
            known = weakref.ref(response)
            if kind == "broken":
                with pytest.raises(UpstreamFailed):
                    await response.read()
            elif kind != "unread":
                await response.read()
            del response
            await asyncio.sleep(0.02)
            assert known() is None

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


# What leads where.


def test_addresses() -> None:
    assert split("http://[::1]:8080/v1/") == (("::1", 8080, False), "[::1]:8080", "/v1")
    assert split("https://[2001:db8::1]") == (("2001:db8::1", 443, True), "[2001:db8::1]", "")
    assert split("https://Api.Example:443/a/b") == (("api.example", 443, True), "api.example", "/a/b")
    assert split("http://api.example:443") == (("api.example", 443, False), "api.example:443", "")


def test_the_other_internet(run: Run) -> None:
    async def play(talk: Talk) -> None:
        asked = await talk.asked()
        await talk.say(
            HEAD + b"content-length: %d\r\n\r\n" % len(asked.headers["host"]), asked.headers["host"].encode()
        )

    async def scenario() -> None:
        try:
            async with pair(play, host="::1") as both:
                assert await both.get() == (200, f"[::1]:{both.server.port}".encode())
        except OSError:
            pytest.skip("no IPv6 here")

    run(scenario())


@pytest.mark.parametrize("broken", ["a\r\nx: y", "a\nx: y", "a\r", "\n", "a\r\n\r\nGET / HTTP/1.1", "a\r\n b"])
def test_header_lines_cannot_be_broken(broken: str) -> None:
    assert lines([("a", "b"), ("c", "")]) == b"a: b\r\nc: \r\n"
    for pairs in ([("x", broken)], [(broken, "x")], [("a", "b"), ("x", broken), ("c", "d")]):
        with pytest.raises(ValueError, match="line break"):
            lines(pairs)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "/\n", "/a HTTP/1.1\r\n\r\nGET /b", "/\x00", "/\x7f"])
def test_nor_can_the_first_line(run: Run, path: str) -> None:
    async def scenario() -> None:
        async with pair(forever(OK)) as both:
            with pytest.raises(ValueError, match="path"):
                await both.ask(path)
            assert both.server.taken == 0

    run(scenario())


def test_a_client_that_was_never_used() -> None:
    client = Client("fake", 1, 1)
    assert len(client) == 0
    client.close()
    assert isinstance(Pair(client, None), tuple)  # type: ignore[arg-type]
