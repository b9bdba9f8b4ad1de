"""Answers on their way to a caller: by a voice of the server's own (Cycle) or by way of ASGI (Pump), which say the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import h11
import pytest
import uvicorn
from tests.serve.scripted import Run, run, until
from uvicorn.server import ServerState

from knapcache.serve.request.incoming import Incoming, Left, Pump, Voice
from knapcache.serve.request.protocol import Cycle, Protocol
from knapcache.serve.request.shortcut import LONGEST

__all__ = ["run"]

Tell = Callable[[Incoming], Awaitable[None]]
Answer = tuple[int, list[tuple[bytes, bytes]], bytes]


class Told:
    """An application that tells what it is told to, with the voice that the server has."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self.errors: list[BaseException] = []
        self.cycles: list[weakref.ref[Any]] = []
        self.kinds: list[type] = []

    def short(self, *_: object) -> None:
        """Nothing is known by heart."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.cycles.append(weakref.ref(send.__self__))
        self.kinds.append(type(send.__self__))
        try:
            await self._tell(Incoming(scope, receive, send, 0.0))
        except Left:
            pass
        except Exception as error:
            self.errors.append(error)
            raise


class Wire:
    """A connection on the side of the caller, read by h11."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._rest = b""

    async def answer(self) -> Answer | None:
        """The next one; None where it is cut off."""
        judge = h11.Connection(h11.CLIENT)
        judge.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
        judge.send(h11.EndOfMessage())
        head: Any = None
        body: list[bytes] = []
        data, self._rest = self._rest, b""
        ended = False
        while True:
            if data or ended:
                judge.receive_data(data)
            try:
                while (event := judge.next_event()) is not h11.NEED_DATA:
                    if isinstance(event, h11.Response):
                        head = event
                    elif isinstance(event, h11.Data):
                        body.append(event.data)
                    elif isinstance(event, h11.EndOfMessage):
                        self._rest = judge.trailing_data[0]
                        return head.status_code, list(head.headers), b"".join(body)
                    elif isinstance(event, h11.ConnectionClosed):
                        return None
            except h11.RemoteProtocolError:
                return None
            data = await self.reader.read(65536)
            ended = not data

    async def ends(self) -> bool:
        """Whether nothing more comes."""
        async with asyncio.timeout(2):
            with contextlib.suppress(ConnectionError):
                return not self._rest and not await self.reader.read(1)
        return True


@contextlib.asynccontextmanager
async def serving(tell: Tell, protocol: type = Protocol) -> AsyncIterator[tuple[Told, Callable[[], Awaitable[Wire]]]]:
    app, wires = Told(tell), []
    quiet: dict[str, Any] = {"log_config": None, "server_header": False, "date_header": False, "proxy_headers": False}
    config = uvicorn.Config(app, ws="none", interface="asgi3", lifespan="off", **quiet)
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: protocol(config, state, {}), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def wire() -> Wire:
        wires.append(Wire(*await asyncio.open_connection("127.0.0.1", port)))
        return wires[-1]

    try:
        yield app, wire
    finally:
        for each in wires:
            each.writer.close()
        server.close()
        await until(lambda: not state.tasks and not state.connections)


def request(body: bytes = b"{}", *headers: str, version: str = "1.1") -> bytes:
    said = [f"POST /v1/chat/completions HTTP/{version}", "host: x", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(said).encode() + body


def telling(pieces: Iterable[bytes], headers: Iterable[tuple[str, str]] = (), status: int = 200) -> Tell:
    """Says the body of a request, and these pieces after it."""
    seen: list[bool] = []

    async def tell(asked: Incoming) -> None:
        body = await asked.body(1 << 30, 1 << 30)
        voice = asked.begin(status, [("content-type", "text/plain"), *headers])
        for piece in (body[:10], *pieces):
            voice.say(piece)
            if piece == b"wait":
                await asyncio.sleep(0.01)
        voice.say(b"", more=False)
        await asked.said()
        seen.append(voice.disconnected)
        assert not any(seen), "nobody has left"

    return tell


STREAM = [b"one", b"", b"wait", b"x" * 100_000, b"wait", b"\r\n0\r\n\r\n", b"end"]


# The same by all ways.

WAYS = {
    "cycle": request(b"question"),
    "long": request(b"question" + b"." * (LONGEST + 1)),
    "longer": request(b"question" + b"." * (1 << 20)),
    "old": request(b"question", version="1.0"),
    "last": request(b"question", "connection: close"),
    "expects": request(b"question", "expect: 100-continue"),
    "chunks": b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"8;a=b\r\nquestion\r\n0\r\nx: y\r\n\r\n",
    "elsewhere": request(b"question").replace(b"/v1/chat/completions", b"/v1/else"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_is_the_same_by_all_ways(run: Run, way: str) -> None:
    async def scenario() -> None:
        async with serving(telling(STREAM)) as (app, connect):
            wire = await connect()
            wire.writer.write(WAYS[way])
            answer = await wire.answer()
            assert answer is not None
            status, headers, body = answer
            question = b"question" if len(WAYS[way]) < 1000 else b"question.."
            assert (status, body) == (200, question + b"".join(STREAM))
            assert (b"content-type", b"text/plain") in headers
            assert app.kinds[0] is Cycle if way in ("cycle", "chunks") else app.kinds[0] is not Cycle
            if way in ("old", "last"):
                assert await wire.ends()
            else:
                wire.writer.write(request(b"again"))
                again = await wire.answer()
                assert again is not None
                assert again[2].startswith(b"againone")
            await asyncio.sleep(0)
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("cut", [1, 7, 60])
def test_requests_in_one_go(run: Run, cut: int) -> None:
    async def scenario() -> None:
        async with serving(telling([b"!", b"wait"])) as (app, connect):
            wire = await connect()
            sent = b"".join(request(b"%d" % k) for k in range(6)) + request(b"last", "connection: close")
            for k in range(0, len(sent), len(sent) // cut):
                wire.writer.write(sent[k : k + len(sent) // cut])
                await asyncio.sleep(0.001)
            for name in (*(b"%d" % k for k in range(6)), b"last"):
                answer = await wire.answer()
                assert answer is not None
                assert answer[2] == name + b"!wait"
            assert await wire.ends()
            assert app.errors == []
            assert Cycle in app.kinds

    run(scenario())


def test_one_after_the_other(run: Run) -> None:
    async def scenario() -> None:
        async with serving(telling([b"!"])) as (app, connect):
            wire = await connect()
            for k in range(50):
                wire.writer.write(request(b"%d" % k))
                assert (await wire.answer() or (0, [], b""))[2] == b"%d!" % k
            await until(lambda: set(app.kinds) == {Cycle})

    run(scenario())


def test_headers_after_the_body_are_none(run: Run) -> None:
    seen: list[Any] = []

    async def tell(asked: Incoming) -> None:
        await asked.body(100, 100)
        seen.append(asked.headers)
        await asked.answer(200, [], b"ok")

    async def scenario() -> None:
        async with serving(tell) as (_, connect):
            wire = await connect()
            wire.writer.write(WAYS["chunks"].replace(b"x: y", b"authorization: Bearer other\r\nhost: evil"))
            assert (await wire.answer() or (0, [], b""))[0] == 200
            assert seen == [{"host": "x", "transfer-encoding": "chunked"}]

    run(scenario())


# What an answer says of itself.


@pytest.mark.parametrize("name", ["connection", "Connection"])
def test_an_answer_that_is_the_last(run: Run, name: str) -> None:
    async def scenario() -> None:
        async with serving(telling([b"x" * 3_000_000], [(name, "close")])) as (_, connect):
            wire = await connect()
            wire.writer.write(request() * 2)
            answer = await wire.answer()
            assert answer is not None
            assert [value for key, value in answer[1] if key.lower() == b"connection"] == [b"close"]
            assert len(answer[2]) == 3_000_002
            assert await wire.ends()

    run(scenario())


@pytest.mark.parametrize(
    ("status", "name"), [(200, "content-length"), (200, "Content-Length"), (529, "content-length")]
)
def test_an_answer_of_a_known_length(run: Run, status: int, name: str) -> None:
    async def scenario() -> None:
        async with serving(telling([b"abc"], [(name, "5")], status)) as (_, connect):
            wire = await connect()
            for _ in range(2):
                wire.writer.write(request())
                answer = await wire.answer()
                assert answer is not None
                assert (answer[0], answer[2]) == (status, b"{}abc")
                assert not [key for key, _ in answer[1] if key.lower() == b"transfer-encoding"]

    run(scenario())


@pytest.mark.parametrize("said", [4, 6, 0])
@pytest.mark.parametrize("way", ["cycle", "old"])
def test_an_answer_of_another_length_than_was_said(run: Run, said: int, way: str) -> None:
    async def scenario() -> None:
        async with serving(telling([b"abc"], [("content-length", str(said))])) as (app, connect):
            wire = await connect()
            wire.writer.write(request(version="1.1" if way == "cycle" else "1.0"))
            await wire.answer()
            assert await wire.ends()
            await until(lambda: len(app.errors) == 1)
            assert isinstance(app.errors[0], RuntimeError)

    run(scenario())


@pytest.mark.parametrize(
    "pair", [("x", "a\r\nset-cookie: b"), ("x\r\ny", "a"), ("x", "a\n"), ("x", "\r"), ("x", "a\r\n\r\nhi")]
)
def test_header_lines_cannot_be_broken(run: Run, pair: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with serving(telling([b"abc"], [pair])) as (app, connect):
            wire = await connect()
            wire.writer.write(request())
            assert await wire.reader.read() == b""
            await until(lambda: len(app.errors) == 1)

    run(scenario())


def test_a_body_where_there_is_none(run: Run) -> None:
    async def tell(asked: Incoming) -> None:
        await asked.body(100, 100)
        voice = asked.begin(204, [])
        voice.say(b"", more=False)

    async def scenario() -> None:
        async with serving(tell) as (_, connect):
            wire = await connect()
            for _ in range(2):
                wire.writer.write(request())
                assert await wire.answer() == (204, [], b"")

    run(scenario())


def test_words_out_of_order(run: Run) -> None:
    seen: list[str] = []

    async def tell(asked: Incoming) -> None:
        await asked.body(100, 100)
        assert isinstance(asked._own, Cycle)
        voice = asked._own
        for wrong in (lambda: voice.say(b"x"), lambda: (voice.begin(200, []), voice.begin(200, []))):
            with pytest.raises(RuntimeError) as told:
                wrong()
            seen.append(str(told.value))
        voice.say(b"hi", more=False)
        with pytest.raises(RuntimeError):
            voice.say(b"x")
        seen.append("over")

    async def scenario() -> None:
        async with serving(tell) as (app, connect):
            wire = await connect()
            for _ in range(2):
                wire.writer.write(request())
                assert (await wire.answer() or (0, [], b""))[2] == b"hi"
            await until(lambda: len(seen) == 6)
            assert app.errors == []

    run(scenario())


def test_the_head_does_not_wait_for_a_body(run: Run) -> None:
    go_on = asyncio.Event()

    async def tell(asked: Incoming) -> None:
        await asked.body(100, 100)
        voice = asked.begin(200, [("x-head", "here")])
        await go_on.wait()
        voice.say(b"body", more=False)

    async def scenario() -> None:
        async with serving(tell) as (_, connect):
            wire = await connect()
            wire.writer.write(request())
            async with asyncio.timeout(2):
                head = await wire.reader.readuntil(b"\r\n\r\n")
            assert b"x-head: here\r\n" in head
            go_on.set()
            assert await wire.reader.readexactly(14) == b"4\r\nbody\r\n0\r\n\r\n"

    run(scenario())


# Slow callers, and those who leave.


@pytest.mark.parametrize("way", ["cycle", "old"])
def test_a_slow_caller_is_told_all(run: Run, way: str) -> None:
    pieces = [b"%06d" % k * 5000 for k in range(400)]  # 12 MB

    async def scenario() -> None:
        async with serving(telling(pieces)) as (app, connect):
            wire = await connect()
            wire.writer.write(WAYS[way])
            await asyncio.sleep(0.1)
            answer = await wire.answer()
            assert answer is not None
            assert answer[2] == b"question" + b"".join(pieces)
            assert app.errors == []

    run(scenario())


def test_whoever_waits_for_a_slow_caller_is_made_to_wait(run: Run) -> None:
    sent = 0

    async def tell(asked: Incoming) -> None:
        nonlocal sent
        await asked.body(100, 100)
        await asked.start(200, [])
        while sent < 50 << 20:
            await asked.piece(bytes(1 << 16))
            sent += 1 << 16
        await asked.piece(b"", more=False)

    async def scenario() -> None:
        async with serving(tell) as (app, connect):
            wire = await connect()
            wire.writer.write(request())
            await asyncio.sleep(0.2)
            assert sent < 32 << 20
            answer = await wire.answer()
            assert answer is not None
            assert len(answer[2]) == 50 << 20
            assert app.errors == []

    run(scenario())


@pytest.mark.parametrize("way", ["cycle", "old", "long", "pipelined"])
@pytest.mark.parametrize("when", ["before", "during"])
def test_a_caller_who_leaves_is_noticed(run: Run, way: str, when: str) -> None:
    voices: list[Voice] = []
    go_on, done = asyncio.Event(), asyncio.Event()

    async def tell(asked: Incoming) -> None:
        await asked.body(1 << 20, 1 << 20)
        if when == "before":
            await go_on.wait()
        voice = asked.begin(200, [])
        voices.append(voice)
        for _ in range(200):  # whatever is said now does no harm
            voice.say(b"x" * 1000)
            await asyncio.sleep(0.001)
            if voice.disconnected:
                break
        voice.say(b"", more=False)
        await asked.said()
        done.set()

    async def scenario() -> None:
        async with serving(tell) as (app, connect):
            wire = await connect()
            wire.writer.write(WAYS["cycle"] * 2 if way == "pipelined" else WAYS[way])
            if when == "during":
                await wire.reader.read(100)
            else:
                await asyncio.sleep(0.02)
            wire.writer.transport.abort()
            await asyncio.sleep(0.02)
            go_on.set()
            async with asyncio.timeout(2):
                await done.wait()
            assert voices[0].disconnected
            assert app.errors == []

    run(scenario())


def test_nothing_keeps_a_cycle_when_it_is_over(run: Run) -> None:
    async def scenario() -> None:
        async with serving(telling([b"!"])) as (app, connect):
            wire = await connect()
            for _ in range(3):
                wire.writer.write(request())
                await wire.answer()
            wire.writer.close()
            await asyncio.sleep(0.05)
            assert app.kinds == [Cycle] * 3
            assert [cycle() for cycle in app.cycles] == [None] * 3

    gc.collect()
    gc.disable()
    try:
        run(scenario())
    finally:
        gc.enable()


def test_a_pump_that_cannot_send_says_so(run: Run) -> None:
    async def receive() -> Any:
        await asyncio.sleep(60)

    async def scenario() -> None:
        for error, told in ((RuntimeError("no"), True), (OSError("gone"), False)):

            async def send(_: Any, error: Exception = error) -> None:
                raise error

            pump = Pump(receive, send)
            pump.begin(200, [])
            pump.say(b"", more=False)
            with pytest.raises(RuntimeError) if told else contextlib.nullcontext():
                await pump.done()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(scenario())
