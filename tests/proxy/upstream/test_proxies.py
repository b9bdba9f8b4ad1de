"""Requests through HTTP and HTTPS proxies, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.proxy.settings import UpstreamSettings
from knapcache.proxy.upstream.client import Client
from knapcache.proxy.upstream.connect import TlsFiles
from knapcache.proxy.upstream.proxies import MAX_CONNECT_HEAD, HttpProxy
from knapcache.proxy.upstream.upstream import Upstream
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_proxy import ForwardProxy
from tests.support.scripted_server import (
    OK,
    ClientHarness,
    Run,
    Script,
    ScriptedServer,
    ServerConnection,
    respond_always,
    run,
)
from tests.support.timing import async_wait_until

__all__ = ["run"]

HEAD = b"HTTP/1.1 200 OK\r\n"
ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
NAME = "upstream.test"
"""Only the proxy knows where this host is."""


class Tls(NamedTuple):
    """Different certificates for the upstream and the proxy, and a file that trusts both."""

    upstream: Certificate
    proxy: Certificate
    files: TlsFiles


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("tls")
    upstream = make_certificate(folder / "upstream", f"DNS:{NAME}")
    proxy = make_certificate(folder / "proxy", "IP:127.0.0.1")
    bundle = folder / "bundle.pem"
    bundle.write_text(upstream.cert.read_text() + proxy.cert.read_text())
    return Tls(upstream, proxy, TlsFiles(bundle))


@contextlib.asynccontextmanager
async def proxied(
    proxy: ScriptedServer, upstream: ScriptedServer, files: TlsFiles | None = None, userinfo: str = "", **options: Any
) -> AsyncIterator[ClientHarness]:
    """A client whose requests go through a proxy. At the end no connection may be open."""
    url = proxy.url.replace("://", f"://{userinfo}@") if userinfo else proxy.url
    client = Client("fake", options.pop("connect_timeout", 5.0), 5.0, proxy=HttpProxy.parse(url), tls=files)
    try:
        yield ClientHarness(client, upstream)
    finally:
        client.close()
    await async_wait_until(lambda: not len(client))
    await async_wait_until(lambda: not proxy.open)


def server(script: Script, certificate: Certificate | None) -> ScriptedServer:
    options: Any = {} if certificate is None else {"ssl": certificate.server_context}
    return ScriptedServer(script, **options)


async def echo(connection: ServerConnection) -> None:
    """Answer every request with its method, target, host and body."""
    while True:
        request = await connection.read_request()
        assert not any(name.startswith("proxy-") for name in request.headers)
        body = b"%b %b %b " % (request.method.encode(), request.target.encode(), request.headers["host"].encode())
        body += request.body
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)


@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_requests_reach_the_upstream_and_connections_are_reused(
    run: Run, tls: Tls, scheme: str, proxy_scheme: str
) -> None:
    async def scenario() -> None:
        upstream = server(echo, tls.upstream if scheme == "https" else None)
        options: dict[str, Any] = {"ssl": tls.proxy.server_context} if proxy_scheme == "https" else {}
        async with upstream, ForwardProxy(upstream, credentials="us@er:p:ss/é", **options) as proxy:
            async with proxied(proxy, upstream, tls.files, "us%40er:p%3Ass%2F%C3%A9") as harness:
                url, host = upstream.url_of(NAME), f"{NAME}:{upstream.port}"
                for _ in range(3):
                    status, body = await harness.get("/a?b=c", "POST", b"body", url=url)
                    assert (status, body) == (200, b"POST /a?b=c %b body" % host.encode())
                long = b"x" * 3_000_000
                assert (await harness.get("/", "POST", long, url=url))[1].endswith(long)
                assert proxy.accepted == upstream.accepted == len(harness.client) == 1
            if scheme == "https":
                (head,) = proxy.heads
                assert head.startswith(b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n" % (host.encode(), host.encode()))
            else:
                assert len(proxy.heads) == 4
                assert proxy.heads[0].startswith(b"POST http://%b/a?b=c HTTP/1.1\r\n" % host.encode())
                assert all(head.count(b"proxy-authorization: ") == 1 for head in proxy.heads)

    run(scenario())


@pytest.mark.parametrize("how", ["environment", "setting", "no proxy"])
def test_an_upstream_uses_the_proxy_of_its_settings_or_the_environment(
    run: Run, tls: Tls, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        server = ScriptedServer(echo, ssl=tls.upstream.server_context)
        async with server, ForwardProxy(server, credentials="user:secret", ssl=tls.proxy.server_context) as proxy:
            url = proxy.url.replace("://", "://user:secret@")
            fields: dict[str, Any] = {"url": f"{server.url_of(NAME)}/v1", "ca_file": tls.files.ca_file, "name": "fake"}
            if how == "setting":
                fields["proxy"] = url
            else:
                monkeypatch.setenv("HTTPS_PROXY", url)
            if how == "no proxy":
                monkeypatch.setenv("NO_PROXY", NAME)
            upstream = Upstream(UpstreamSettings.model_validate(fields))
            attempts: list[int] = []
            if how == "no proxy":  # only the proxy knows this name
                with pytest.raises(UpstreamFailed, match="host name"):
                    await upstream.send("GET", "/models", b"", None, attempts)
            else:
                response = await upstream.send("GET", "/models", b"", None, attempts)
                assert (await response.read()).startswith(b"GET /v1/models upstream.test:")
                assert attempts == [200]
            assert proxy.accepted == (how != "no proxy")
            upstream.client.close()

    run(scenario())


@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
def test_both_certificates_are_verified(run: Run, tls: Tls, proxy_scheme: str) -> None:
    async def scenario() -> None:
        upstream = server(echo, tls.upstream)
        options: dict[str, Any] = {"ssl": tls.proxy.server_context} if proxy_scheme == "https" else {}
        async with upstream, ForwardProxy(upstream, **options) as proxy:
            only_upstream, only_proxy = TlsFiles(tls.upstream.cert), TlsFiles(tls.proxy.cert)
            for files, reached in ((only_upstream, proxy_scheme == "http"), (only_proxy, False)):
                async with proxied(proxy, upstream, files) as harness:
                    if reached:
                        assert (await harness.get(url=upstream.url_of(NAME)))[0] == 200
                    else:
                        with pytest.raises(UpstreamFailed, match="TLS certificate not valid") as caught:
                            await harness.get(url=upstream.url_of(NAME))
                        assert caught.value.safe_to_retry
            async with proxied(proxy, upstream, tls.files) as harness:  # a name that the certificate does not have
                with pytest.raises(UpstreamFailed, match="TLS certificate not valid"):
                    await harness.get(url=upstream.url_of("other.test"))

    run(scenario())


@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("status", [302, 403, 407, 502])
def test_a_refusal_is_reported_without_credentials(
    run: Run, tls: Tls, scheme: str, proxy_scheme: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        upstream = server(echo, tls.upstream if scheme == "https" else None)
        options: dict[str, Any] = {"ssl": tls.proxy.server_context} if proxy_scheme == "https" else {}
        async with upstream, ForwardProxy(upstream, refuse=status, **options) as proxy:
            async with proxied(proxy, upstream, tls.files, "user:secret") as harness:
                if scheme == "http" and status != 407:  # as if the upstream had answered
                    assert await harness.get(url=upstream.url_of(NAME)) == (status, b"no")
                    return
                with pytest.raises(UpstreamFailed) as caught:
                    await harness.get(url=upstream.url_of(NAME))
                message = str(caught.value)
                assert message.startswith(f"upstream fake failed: its proxy refused with status {status}")
                assert ("authentication" in message) == (status == 407)
                assert caught.value.status == 502
                shown = f"{message} {caught.value.__cause__!r} {harness.client._proxy!r} {harness.client._proxy}"
                assert "secret" not in shown
                assert "dXNlc" not in shown
                await async_wait_until(lambda: not len(harness.client))
            assert upstream.accepted == 0

    run(scenario())
    assert "secret" not in caplog.text


def test_wrong_credentials_are_refused(run: Run, tls: Tls) -> None:
    async def scenario() -> None:
        upstream = server(echo, tls.upstream)
        async with upstream, ForwardProxy(upstream, credentials="user:right") as proxy:
            for userinfo in ("", "user", "user:wrong"):
                async with proxied(proxy, upstream, tls.files, userinfo) as harness:
                    with pytest.raises(UpstreamFailed, match="status 407"):
                        await harness.get(url=upstream.url_of(NAME))
            async with proxied(proxy, upstream, tls.files, "user:right") as harness:
                assert (await harness.get(url=upstream.url_of(NAME)))[0] == 200

    run(scenario())


async def close_at_once(_: ServerConnection) -> None: ...


async def close_in_the_head(connection: ServerConnection) -> None:
    await connection.reader.readuntil(b"\r\n\r\n")
    await connection.send(b"HTTP/1.1 200 Conn")


async def close_before_tls(connection: ServerConnection) -> None:
    await connection.reader.readuntil(b"\r\n\r\n")
    await connection.send(ESTABLISHED)


async def reset(connection: ServerConnection) -> None:
    await connection.reader.readuntil(b"\r\n\r\n")
    connection.reset()


def answers(*pieces: bytes) -> Script:
    async def script(connection: ServerConnection) -> None:
        await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(*pieces)
        await connection.wait_closed()

    return script


@pytest.mark.parametrize(
    "script",
    [
        close_at_once,
        close_in_the_head,
        close_before_tls,
        reset,
        answers(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
        answers(b"HTTP/1.1 2x0 OK\r\n\r\n"),
        answers(b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MAX_CONNECT_HEAD + 1)),
        answers(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * (MAX_CONNECT_HEAD // 20)),
        answers(ESTABLISHED + b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"),
        answers(ESTABLISHED, b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwrong"),
        answers(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"),
    ],
)
@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
def test_broken_proxies_fail_the_request(run: Run, tls: Tls, script: Script, proxy_scheme: str) -> None:
    async def scenario() -> None:
        upstream = server(echo, tls.upstream)
        async with (
            upstream,
            server(script, tls.proxy if proxy_scheme == "https" else None) as proxy,
            proxied(proxy, upstream, tls.files) as harness,
        ):
            with pytest.raises(UpstreamFailed) as caught:
                await harness.get(url=upstream.url_of(NAME))
            assert (caught.value.status, caught.value.safe_to_retry) == (502, True)

    run(scenario())


@pytest.mark.parametrize(
    "pieces", [[b"HTTP/1.1 100 Continue\r\n\r\n" + ESTABLISHED], [bytes([b]) for b in ESTABLISHED]]
)
def test_a_response_to_connect_may_come_in_pieces_and_after_1xx(run: Run, tls: Tls, pieces: list[bytes]) -> None:
    class PiecewiseProxy(ForwardProxy):
        async def _handle(self, connection: ServerConnection) -> None:
            real = connection.send

            async def send(*_: bytes) -> None:
                await real(*pieces)

            connection.send = send  # type: ignore[method-assign]
            await super()._handle(connection)

    async def scenario() -> None:
        upstream = server(respond_always(OK), tls.upstream)
        async with upstream, PiecewiseProxy(upstream) as proxy, proxied(proxy, upstream, tls.files) as harness:
            for _ in range(2):
                assert await harness.get(url=upstream.url_of(NAME)) == (200, b"hi")
            assert proxy.accepted == 1

    run(scenario())


async def hang(connection: ServerConnection) -> None:
    await connection.wait_closed()


async def hang_after_connect(connection: ServerConnection) -> None:
    await connection.reader.readuntil(b"\r\n\r\n")
    await connection.send(ESTABLISHED)
    await connection.wait_closed()


@pytest.mark.parametrize("script", [hang, hang_after_connect])
@pytest.mark.parametrize("proxy_tls", ["http", "https", "hangs in TLS"])
@pytest.mark.parametrize("end", ["timeout", "cancelled"])
def test_the_connect_timeout_covers_proxy_connect_and_tls(
    run: Run, tls: Tls, script: Script, proxy_tls: str, end: str
) -> None:
    async def scenario() -> None:
        upstream = server(echo, tls.upstream)
        async with (
            upstream,
            server(script, tls.proxy if proxy_tls == "https" else None) as proxy,
            proxied(proxy, upstream, tls.files, connect_timeout=0.3 if end == "timeout" else 5.0) as harness,
        ):
            if proxy_tls == "hangs in TLS":
                harness.client._proxy = HttpProxy("127.0.0.1", proxy.port, tls=True)
            if end == "timeout":
                with pytest.raises(UpstreamFailed, match=r"timeout: no connection after 0\.3 s") as caught:
                    await harness.get(url=upstream.url_of(NAME))
                assert (caught.value.status, caught.value.safe_to_retry) == (504, True)
            else:
                task = asyncio.create_task(harness.get(url=upstream.url_of(NAME)))
                await asyncio.sleep(0.2)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled()
            await async_wait_until(lambda: not proxy.open)

    run(scenario())


def test_an_unreachable_proxy_is_reported_as_safe_to_retry(run: Run) -> None:
    async def scenario() -> None:
        async with ScriptedServer(hang) as gone:
            pass
        client = Client("fake", 1, 1, proxy=HttpProxy("127.0.0.1", gone.port, tls=False))
        for url in ("http://upstream.test", "https://upstream.test"):
            with pytest.raises(UpstreamFailed, match="connection refused") as caught:
                await client.request("GET", url, "/", b"", None)
            assert caught.value.safe_to_retry
        assert len(client) == 0

    run(scenario())


@pytest.mark.parametrize("proxy_scheme", ["http", "https"])
@pytest.mark.parametrize(
    "fault", ["reset", "closed in the body", "extra response", "client closed", "cancelled", "slow reader"]
)
def test_faults_inside_a_tunnel(run: Run, tls: Tls, proxy_scheme: str, fault: str) -> None:
    """TLS inside a tunnel, or inside TLS, behaves as a direct connection does."""

    async def script(connection: ServerConnection) -> None:
        await connection.read_request()
        if fault == "closed in the body":
            await connection.send(HEAD + b"content-length: 9\r\n\r\n1234")
            return
        if fault == "reset":
            connection.reset()
            return
        if fault == "slow reader":
            await connection.send(HEAD + b"content-length: 8000000\r\n\r\n" + bytes(8_000_000))
        if fault == "extra response":
            await connection.send(OK)
            await asyncio.sleep(0.03)
            await connection.send(OK)
        await connection.wait_closed()

    async def scenario() -> None:
        upstream = server(script, tls.upstream)
        options: dict[str, Any] = {"ssl": tls.proxy.server_context} if proxy_scheme == "https" else {}
        async with upstream, ForwardProxy(upstream, **options) as proxy, proxied(proxy, upstream, tls.files) as harness:
            url = upstream.url_of(NAME)
            if fault == "extra response":
                assert await harness.get(url=url) == (200, b"hi")
            elif fault == "slow reader":
                response = await harness.request(url=url)
                await asyncio.sleep(0.2)
                assert response._body.size < 4_000_000
                assert len(await response.read()) == 8_000_000
                return
            elif fault in ("client closed", "cancelled"):
                task = asyncio.create_task(harness.get(url=url))
                await async_wait_until(lambda: bool(len(harness.client)))
                if fault == "client closed":
                    harness.client.close()
                else:
                    task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or isinstance(task.exception(), UpstreamFailed)
            else:
                with pytest.raises(UpstreamFailed):
                    await harness.get(url=url)
            await async_wait_until(lambda: not len(harness.client))
            await async_wait_until(lambda: not upstream.open)

    run(scenario())


def test_a_client_certificate_is_shown_to_the_upstream_only(run: Run, tls: Tls, tmp_path: Path) -> None:
    ours = make_certificate(tmp_path / "client", "DNS:client.test")
    contexts = [tls.upstream.server_context, tls.proxy.server_context]
    contexts[0].verify_mode = ssl.CERT_REQUIRED
    contexts[0].load_verify_locations(ours.cert)
    contexts[1].verify_mode = ssl.CERT_OPTIONAL
    contexts[1].load_verify_locations(tls.upstream.cert)  # ours would be refused

    async def scenario() -> None:
        upstream = ScriptedServer(echo, ssl=contexts[0])
        async with upstream, ForwardProxy(upstream, ssl=contexts[1]) as proxy:
            files = TlsFiles(tls.files.ca_file, ours.cert, ours.key)
            async with proxied(proxy, upstream, files) as harness:
                assert (await harness.get(url=upstream.url_of(NAME)))[0] == 200
            async with proxied(proxy, upstream, tls.files) as harness:
                with pytest.raises(UpstreamFailed):
                    await harness.get(url=upstream.url_of(NAME))

    run(scenario())
