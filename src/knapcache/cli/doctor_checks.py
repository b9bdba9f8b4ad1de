"""The checks of `knapcache doctor`. Each returns what is right, raises for a problem, and logs warnings.

They call the checks that the proxy makes at its start, except those that create or change files.
"""

from __future__ import annotations

import asyncio
import fcntl
import http.client
import logging
import os
import platform
import shutil
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from urllib.parse import urlsplit

from knapcache.cache.opening import seal_secret_of
from knapcache.cache.options import seal_secret
from knapcache.cli.cache_file import HISTORY_NAME, proxy_url, raw_secret, read_secret
from knapcache.errors import InvalidInput, KnapcacheError, MissingExtra, StoreError, UpstreamFailed, install_command
from knapcache.proxy.events.history_file import unpack
from knapcache.proxy.feature_list import feature_specs, imported
from knapcache.proxy.http.tls import load_context
from knapcache.proxy.http.uvicorn_check import http_protocol
from knapcache.proxy.run import listen, raise_file_limit
from knapcache.proxy.settings import Settings, UpstreamSettings
from knapcache.proxy.settings.loading import CONFIG, LoadedSettings
from knapcache.proxy.settings.secrets import SECRET, TOKEN, check_data_directory
from knapcache.proxy.upstream import encode_headers
from knapcache.proxy.upstream.embedded_model import check_loading, find_weights, require_xllamacpp
from knapcache.proxy.upstream.own_calls import ANTHROPIC_HEADERS, HEADERS
from knapcache.proxy.upstream.upstream import Upstream
from knapcache.store.encryption import read_keys
from knapcache.store.redis.existing import check_server
from knapcache.store.redis.urls import shown_url
from knapcache.store.sqlite.database import MIGRATIONS, known_format
from knapcache.store.sqlite.files import require_own_files
from knapcache.units import format_age, format_size

log = logging.getLogger("knapcache.doctor")

OTHER_EXTRAS = {"dev", "docs"}
"""Extras for work on knapcache itself."""
NEEDED_EXTRAS = ("", "serve")
"""The core, and what the proxy needs."""
MISSING = "is not installed"
MIN_FREE = 64_000_000
"""Bytes. With less, a store may not be created."""
MAX_CLOCK_ERROR = 2.0
"""Seconds between the clocks of two machines."""
MAX_FILE_AHEAD = 60.0
"""Seconds that the time of a file may be in the future: some file systems have a server's clock."""
PORT_TIMEOUT = 3.0
MAX_STATE = 500
"""Bytes that are read of a response at the port."""


def python_version() -> str:
    from packaging.specifiers import SpecifierSet

    needed, found = metadata("knapcache")["Requires-Python"], platform.python_version()
    if not SpecifierSet(needed).contains(found, prereleases=True):
        raise InvalidInput(f"Python {found} does not fit: knapcache {version('knapcache')} needs {needed}")
    return f"{found}; knapcache {version('knapcache')} needs {needed}"


def packages() -> str:
    """Check versions of installed packages, and internals of uvicorn."""
    complete: list[str] = []
    incomplete: list[str] = []
    for extra, states in requirements().items():
        wrong = [f"{name} {state}" for name, state in states.items() if state]
        command = install_command(extra or "serve")
        if wrong and extra in NEEDED_EXTRAS:
            raise MissingExtra(f"{', '.join(wrong)}: {command}")
        if unfit := [text for text in wrong if not text.endswith(MISSING)]:
            log.warning("%s: %s", ", ".join(unfit), command)
        (incomplete if MISSING in states.values() else complete).append(extra or "core")
    http_protocol()
    return f"complete: {', '.join(complete)}" + (f"; not installed: {', '.join(incomplete)}" if incomplete else "")


def requirements() -> dict[str, dict[str, str]]:
    """Return the state of each package of each extra ("" is the core): "", MISSING, or why its version does not fit."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        raise MissingExtra(f"doctor needs packaging: {install_command('serve')}") from None
    extras = [each for each in metadata("knapcache").get_all("Provides-Extra") or () if each not in OTHER_EXTRAS]
    found: dict[str, dict[str, str]] = {extra: {} for extra in ("", *extras)}
    for each in map(Requirement, requires("knapcache") or ()):
        core = each.marker is None or each.marker.evaluate({"extra": ""})
        for extra, states in found.items():
            if core == (not extra) and (each.marker is None or each.marker.evaluate({"extra": extra})):
                try:
                    installed = version(each.name)
                except PackageNotFoundError:
                    states[each.name] = MISSING
                    continue
                fits = each.specifier.contains(installed, prereleases=True)
                states[each.name] = "" if fits else f"{installed} does not fit, {each.specifier} is needed"
    return found


def sources(loaded: LoadedSettings, config: Path | None) -> str:
    """Return where the settings come from."""
    file = config or os.environ.get(CONFIG)
    given = list(loaded.sources.values())
    counts = [
        f"{given.count(name)} from {text}" for name, text in (("environment", "the environment"), ("flag", "flags"))
    ]
    return f"{given.count('file')} from {file}, {', '.join(counts)}" if file else f"no file, {', '.join(counts)}"


def port(settings: Settings) -> str:
    """Check whether the port is free, or has a running proxy."""
    if settings.port == 0:
        return "any free port"
    try:
        listen(settings.host, settings.port).close()
    except InvalidInput:
        if (found := running_proxy(proxy_url(settings))) is None:
            raise
        return found
    return f"{settings.host}, port {settings.port} is free"


def running_proxy(url: str) -> str | None:
    """Return what a proxy at a URL says about itself; None if there is none."""
    try:
        if 'realm="knapcache"' not in get(url, "/admin/v1/summary")[0].get("www-authenticate", ""):
            return None
        state = get(url, "/readyz")[1].strip()
    except (OSError, http.client.HTTPException):
        return None
    if state != "ok":
        log.warning("a proxy runs at %s: %s", url, state)
    return f"a proxy runs at {url} and is ready"


def get(url: str, path: str) -> tuple[http.client.HTTPMessage, str]:
    """Return headers and text of a response. Certificates are not verified: nothing secret is sent."""
    parts = urlsplit(url)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with closing(
        http.client.HTTPSConnection(parts.netloc, timeout=PORT_TIMEOUT, context=context)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.netloc, timeout=PORT_TIMEOUT)
    ) as connection:
        connection.request("GET", path, headers={"connection": "close"})
        with closing(connection.getresponse()) as response:
            return response.headers, response.read(MAX_STATE).decode("utf-8", "replace")


def certificate(settings: Settings) -> str:
    assert settings.tls_cert is not None
    assert settings.tls_key is not None
    load_context(settings.tls_cert, settings.tls_key)
    return f"{settings.tls_cert} fits its key"


def connections(settings: Settings) -> str:
    """Check the limit of open files."""
    return f"up to {raise_file_limit(settings.max_connections):,} at a time"


def directory(settings: Settings) -> str:
    """Check the data directory and the secrets in it."""
    path = settings.path
    if settings.memory_only:
        return "none: memory_only"
    if not os.path.lexists(path):
        parent = nearest(path)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise InvalidInput(f"{path} does not exist, and this user cannot create it in {parent}: choose --path")
        return f"{path} does not exist yet; the first start creates it"
    check_data_directory(path)
    for file in (path / SECRET, path / TOKEN):
        if file.exists() and file.stat().st_mode & 0o077:
            log.warning("%s can be read by other users: run chmod 600", file)
    return f"{path}, {'in use by a running proxy' if is_locked(path / 'serve.lock') else 'not in use'}"


def nearest(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def is_locked(path: Path) -> bool:
    """Return whether a process has locked a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def formats(settings: Settings) -> str:
    """Check whether this version reads the files in the data directory."""
    try:
        found = known_files(settings)
    except StoreError as error:
        raise InvalidInput(f"{error}: restore the secret or version that wrote it, or choose another --path") from None
    encrypted = ", encrypted" if read_keys(settings.encryption_key_env, settings.encryption_key_file) else ""
    return f"{', '.join(found)}{encrypted}" if found else "no files yet"


def known_files(settings: Settings) -> list[str]:
    """Return names and formats of the files. StoreError for another format or secret."""
    found, cache = list[str](), settings.cache_file
    if cache is not None and cache.is_file() and cache.stat().st_size:
        require_own_files(cache)
        number = known_format(cache)
        seal_secret_of(cache, secret_of(settings), trace=False)
        older = ", which the next start converts" if number < len(MIGRATIONS) else ""
        found.append(f"{cache.name} {number}{older}")
    for name, kind in (file for spec in feature_specs() for file in spec.files):
        if not settings.memory_only and (settings.path / name).is_file():
            found.append(f"{name} {imported(kind).known_format(settings.path / name)}")
    history = settings.path / HISTORY_NAME
    if not settings.memory_only and history.is_file():
        try:
            unpack(history.read_bytes())
        except KnapcacheError as error:
            log.warning("%s: %s. The next start renames it, and begins a new history", history, error)
        found.append(history.name)
    return found


def secret_of(settings: Settings) -> bytes | None:
    """Return the secret of the settings, or that of the data directory; None: there is none yet."""
    if settings.secret is not None:
        return bytes.fromhex(settings.secret.get_secret_value())
    file = settings.path / SECRET
    return raw_secret(read_secret(file)) if file.is_file() and not settings.memory_only else None


def disk(settings: Settings) -> str:
    """Compare the free space with what the files may still grow by."""
    if settings.memory_only:
        return "none: memory_only"
    limit = 0 if settings.cache_file is None else settings.capacity
    limit += settings.request_log_bytes * settings.request_log + settings.audit_log_bytes * settings.audit_log
    folder = nearest(settings.path)
    used = sum(size for size, _ in sizes_and_times(settings.path))
    free, growth = shutil.disk_usage(folder).free, max(0, limit - used)
    text = f"{format_size(free)} free in {folder}"
    if free < MIN_FREE:
        raise InvalidInput(f"only {text}: free some space, or choose another directory with --path")
    if free < growth:
        log.warning(
            "%s, and the files may grow by %s: free some space, or set a smaller capacity", text, format_size(growth)
        )
    return f"{text}; the files may grow by {format_size(growth)}"


def sizes_and_times(folder: Path) -> list[tuple[int, float]]:
    """Return size and time of change of each file in a directory."""
    if not folder.is_dir():
        return []
    states = [entry.stat(follow_symlinks=False) for entry in os.scandir(folder)]
    return [(state.st_blocks * 512, state.st_mtime) for state in states if stat.S_ISREG(state.st_mode)]


def clock(settings: Settings) -> str:
    """Compare the clock with the times of the files."""
    newest = max((changed for _, changed in sizes_and_times(settings.path)), default=0.0)
    ahead = newest - time.time()
    if ahead > MAX_FILE_AHEAD:
        log.warning(
            "files in %s were changed %s in the future: set the clock of this machine", settings.path, format_age(ahead)
        )
    return time.strftime("%Y-%m-%d %H:%M:%S %Z") + (", later than all files" if newest else "")


def shared_store(settings: Settings) -> str:
    """Check the server of the shared store, without writing to it."""
    address = settings.store_address
    assert address is not None
    keys = read_keys(settings.encryption_key_env, settings.encryption_key_file)
    try:
        found = check_server(address, settings.capacity, seal_secret(secret_of(settings)), keys)
    except StoreError as error:
        raise InvalidInput(
            f"{shown_url(address)}: {str(error).rstrip('.')}; check the server, `store` and `secret`"
        ) from None
    if abs(found.clock_ahead) > MAX_CLOCK_ERROR:
        way = "ahead of" if found.clock_ahead > 0 else "behind"
        log.warning(
            "the clock of the server is %s %s that of this machine: set it", format_age(abs(found.clock_ahead)), way
        )
    state = "has a cache" if found.exists else "has no cache yet"
    return f"{found.name} at {shown_url(address)} answers, and {state} with prefix {address.prefix}"


def feature_checks(settings: Settings) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield name and check of the features that are on and have a check."""

    def check(place: str) -> str:
        imported(place)(settings)
        return "can start"

    for spec in feature_specs():
        if spec.check and spec.is_on(settings):
            yield spec.name, partial(check, spec.check)


def upstreams(settings: Settings, *, call: bool) -> list[tuple[str, Callable[[], str]]]:
    """Connect to all upstreams at the same time. Return name and result of each. call: request its list of models."""

    async def connect_all() -> list[str | BaseException]:
        tasks = [reach(each, settings, call=call) for each in settings.upstreams]
        return await asyncio.gather(*tasks, return_exceptions=True)

    def result(found: str | BaseException) -> str:
        if isinstance(found, BaseException):
            raise found
        return found

    found = asyncio.run(connect_all())
    return [(each.name, partial(result, one)) for each, one in zip(settings.upstreams, found, strict=True)]


async def reach(settings: UpstreamSettings, proxy: Settings, *, call: bool) -> str:
    """Return what an upstream answers. Raises KnapcacheError if it cannot be used."""
    if settings.local:
        require_xllamacpp()
        check_loading()
        return f"the embedded model, {find_weights(proxy.local_model).name}"
    upstream, begin = Upstream(settings), time.monotonic()
    try:
        if not call:
            await upstream.client.connect(settings.url)
            return f"connected in {1000 * (time.monotonic() - begin):.0f} ms"
        headers = upstream.request_headers(
            ANTHROPIC_HEADERS if settings.kind == "anthropic" else HEADERS, own_key=False
        )
        response = await upstream.send("GET", upstream.path("/v1/models"), encode_headers(headers), None, [])
        await response.close()
    except UpstreamFailed as error:
        raise InvalidInput(f"{error.reason}: check url, proxy and firewall") from None
    finally:
        upstream.client.close()
    status = f"status {response.status} after {1000 * (time.monotonic() - begin):.0f} ms"
    if response.status in (401, 403) and upstream.has_credentials:
        raise InvalidInput(f"refuses the credentials of the settings, {status}: check {settings.key_env or 'headers'}")
    if response.status == 429 or response.status >= 500:
        raise InvalidInput(f"does not serve now, {status}")
    return f"answers a request for its models, {status}"


CHECKS: dict[str, Callable[[Settings], str]] = {
    "port": port,
    "connections": connections,
    "directory": directory,
    "formats": formats,
    "disk": disk,
    "clock": clock,
}
"""Checks that hold for all settings, by name."""
