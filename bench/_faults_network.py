"""Faults of the network: certificates, and proxies of the environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from _fault_clients import Options
from _fault_harness import Case, Failure, Fault, check, fault
from tests.support.http_proxy import ForwardProxy
from tests.support.scripted_server import OK, respond_always

NAME = "upstream.test"
"""A host that only the test proxy knows."""


# TLS.


@fault("TLS", "certificate that is not trusted")
async def untrusted(case: Case) -> None:
    certificate = case.certificate("proxy", "IP:127.0.0.1")
    async with case.serve(respond_always(OK), ssl=certificate.server_context) as harness:
        await harness.must_fail()
        check(harness.server.accepted == 0, "sent the request")


@fault("TLS", "certificate of another name")
async def wrong_name(case: Case) -> None:
    certificate = case.certificate("proxy", "IP:127.0.0.1")
    options = Options(ca_file=certificate.cert)
    async with case.serve(respond_always(OK), options, ssl=certificate.server_context) as harness:
        await harness.must_return(200, b"hi")
        await harness.must_fail(url=harness.server.url_of("localhost"))


# Proxies of the environment.


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    names = [f"{name}_proxy" for name in ("http", "https", "all", "no")]
    names += [*(name.upper() for name in names), "SSL_CERT_FILE"]
    saved = {name: os.environ.pop(name) for name in names if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(saved)


def through_a_proxy(scheme: str, proxy_scheme: str, credentials: str = "", userinfo: str = "") -> Fault:
    async def check_proxy(case: Case) -> None:
        upstream_tls, proxy_tls = case.certificate("upstream", f"DNS:{NAME}"), case.certificate("proxy", "IP:127.0.0.1")
        bundle = case.folder / "bundle.pem"
        bundle.write_text(upstream_tls.cert.read_text() + proxy_tls.cert.read_text())
        server_options: Any = {"ssl": upstream_tls.server_context} if scheme == "https" else {}
        proxy_options: Any = {"ssl": proxy_tls.server_context} if proxy_scheme == "https" else {}
        options = Options(ca_file=bundle, environment=True)
        async with (
            case.serve(respond_always(OK), options, **server_options) as harness,
            ForwardProxy(harness.server, credentials=credentials or None, **proxy_options) as proxy,
        ):
            url = proxy.url.replace("://", f"://{userinfo}@") if userinfo else proxy.url
            variables = {f"{scheme.upper()}_PROXY": url, "SSL_CERT_FILE": str(bundle)}  # for clients that trust by this
            with environment(**variables):
                try:
                    await harness.must_return(200, b"hi", url=harness.server.url_of(NAME))
                except Failure:
                    check(proxy.accepted > 0, "bypassed the proxy")
                    raise

    return check_proxy


fault("proxies", "HTTP_PROXY=http://")(through_a_proxy("http", "http"))
fault("proxies", "HTTPS_PROXY=http:// (CONNECT)")(through_a_proxy("https", "http"))
fault("proxies", "HTTPS_PROXY=https:// (TLS inside TLS)")(through_a_proxy("https", "https"))
fault("proxies", "credentials with escaped characters")(
    through_a_proxy("https", "http", "us@er:p:ss/", "us%40er:p%3Ass%2F")
)


@fault("proxies", "ALL_PROXY")
async def all_proxy(case: Case) -> None:
    async with (
        case.serve(respond_always(OK), Options(environment=True)) as harness,
        ForwardProxy(harness.server) as proxy,
    ):
        with environment(ALL_PROXY=proxy.url):
            await harness.must_return(200, b"hi")
        check(proxy.accepted > 0, "bypassed the proxy")


def bypassed(no_proxy: str) -> Fault:
    async def check_bypass(case: Case) -> None:
        async with (
            case.serve(respond_always(OK), Options(environment=True)) as harness,
            ForwardProxy(harness.server) as proxy,
        ):
            with environment(HTTP_PROXY=proxy.url, NO_PROXY=no_proxy):
                await harness.must_return(200, b"hi")
            check(proxy.accepted == 0, "used the proxy")

    return check_bypass


fault("proxies", "NO_PROXY with an address")(bypassed("example.com,127.0.0.1"))
fault("proxies", "NO_PROXY with a network")(bypassed("127.0.0.0/8"))


@fault("proxies", "refused CONNECT, without credentials in the error")
async def refused_connect(case: Case) -> None:
    certificate = case.certificate("upstream", f"DNS:{NAME}")
    options = Options(ca_file=certificate.cert, environment=True)
    async with (
        case.serve(respond_always(OK), options, ssl=certificate.server_context) as harness,
        ForwardProxy(harness.server, refuse=403) as proxy,
    ):
        with environment(HTTPS_PROXY=proxy.url.replace("://", "://user:hunter2@")):
            error = await harness.must_fail(url=harness.server.url_of(NAME))
        text = f"{error} {error!r}"
        check("hunter2" not in text and "dXNlcjpodW50ZXIy" not in text, "the error shows the password")
