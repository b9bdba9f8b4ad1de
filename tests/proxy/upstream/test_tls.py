"""TLS with upstreams: whose certificates are trusted, and client certificates."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from knapcache.errors import UpstreamFailed
from knapcache.proxy.upstream.connect import TlsFiles, tls_context
from tests.support.certificates import Certificate, make_certificate
from tests.support.scripted_server import (
    OK,
    Run,
    ServerConnection,
    client_harness,
    respond_always,
    respond_once,
    run,
)
from tests.support.timing import async_wait_until

__all__ = ["run"]

HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For an address, and not for localhost."""
    return make_certificate(tmp_path_factory.mktemp("tls") / "server", "IP:127.0.0.1")


@pytest.fixture(autouse=True)
def fresh_contexts() -> Iterator[None]:
    """The environment is read again."""
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


async def echo(connection: ServerConnection) -> None:
    while True:
        body = (await connection.read_request()).body
        await connection.send(HEAD + b"content-length: %d\r\n\r\n" % len(body), body)


@pytest.mark.parametrize("source", ["SSL_CERT_FILE", "SSL_CERT_DIR", "ca_file"])
def test_trusted_certificates(
    run: Run, certificate: Certificate, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = None
    if source == "ca_file":
        files = TlsFiles(certificate.cert)
    elif source == "SSL_CERT_FILE":
        monkeypatch.setenv(source, str(certificate.cert))
    else:
        name = subprocess.run(
            ["openssl", "x509", "-hash", "-noout", "-in", str(certificate.cert)], check=True, capture_output=True
        ).stdout.decode()
        (tmp_path / f"{name.strip()}.0").symlink_to(certificate.cert)
        monkeypatch.setenv(source, str(tmp_path))

    async def scenario() -> None:
        long = b"x" * 3_000_000
        async with client_harness(echo, tls=files, ssl=certificate.server_context) as harness:
            for body in (b"hi", long, b"hi"):
                assert await harness.get(method="POST", content=body) == (200, body)
            assert harness.server.accepted == len(harness.client) == 1
            with pytest.raises(UpstreamFailed, match="TLS certificate not valid"):  # not a name of the certificate
                await harness.get(url=harness.server.url_of("localhost"))
        until_close = respond_once(HEAD + b"\r\nuntil close")
        async with client_harness(until_close, tls=files, ssl=certificate.server_context) as harness:
            assert await harness.get() == (200, b"until close")

    run(scenario())


def test_other_certificates_are_refused(run: Run, certificate: Certificate, tmp_path: Path) -> None:
    other = make_certificate(tmp_path / "other", "IP:127.0.0.1")

    async def scenario() -> None:
        for files in (None, TlsFiles(other.cert)):
            script = respond_always(OK)
            async with client_harness(script, tls=files, ssl=certificate.server_context) as harness:
                with pytest.raises(UpstreamFailed) as caught:
                    await harness.get()
                message = "upstream fake failed: TLS certificate not valid: self-signed certificate"
                assert (str(caught.value), caught.value.safe_to_retry) == (message, True)
                await async_wait_until(lambda: not len(harness.client))
                assert harness.server.accepted == 0

    run(scenario())


def test_a_ca_file_replaces_the_certificates_of_the_system(
    run: Run, certificate: Certificate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate.cert))
    other = make_certificate(tmp_path / "other", "IP:127.0.0.1")

    async def scenario() -> None:
        script = respond_always(OK)
        async with client_harness(script, tls=TlsFiles(other.cert), ssl=certificate.server_context) as harness:
            with pytest.raises(UpstreamFailed, match="TLS certificate not valid"):
                await harness.get()

    run(scenario())


def test_a_server_without_tls(run: Run) -> None:
    async def scenario() -> None:
        async with client_harness(respond_always(OK)) as harness:
            with pytest.raises(UpstreamFailed, match=r"TLS handshake failed|connection (reset|closed)"):
                await harness.get(url=harness.server.url.replace("http:", "https:"))
            assert len(harness.client) == 0

    run(scenario())


@pytest.mark.parametrize("in_one_file", [False, True])
def test_client_certificates(run: Run, certificate: Certificate, tmp_path: Path, in_one_file: bool) -> None:
    ours = make_certificate(tmp_path / "client", "DNS:client.test")
    files = TlsFiles(certificate.cert, ours.cert, ours.key)
    if in_one_file:
        both = tmp_path / "both.pem"
        both.write_text(ours.key.read_text() + ours.cert.read_text())
        files = TlsFiles(certificate.cert, both)
    context = certificate.server_context
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(ours.cert)

    async def scenario() -> None:
        async with client_harness(respond_always(OK), tls=files, ssl=context) as harness:
            assert await harness.get() == (200, b"hi")
        async with client_harness(respond_always(OK), tls=TlsFiles(certificate.cert), ssl=context) as harness:
            with pytest.raises(UpstreamFailed):
                await harness.get()

    run(scenario())


def test_an_encrypted_key_does_not_ask_for_a_password(tmp_path: Path) -> None:
    encrypted = make_certificate(tmp_path / "encrypted", "DNS:client.test", password="secret")
    with pytest.raises(ssl.SSLError):
        tls_context(None, encrypted.cert, encrypted.key)
