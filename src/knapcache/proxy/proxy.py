"""The long-lived objects of one proxy process: built from the settings, opened on its event loop, closed in order.

    one worker       this process has the event pipeline and the admin API
    several workers  the owner of the store has them; the others send it their events and forward admin requests to it
                     (workers/owner_link.py)

If the store cannot be opened (full disk, not a knapcache file, another secret), the proxy still serves. Answers are
then kept in memory, an error is logged, the summary reports it, and the file is left untouched until the next start.
With several workers each process then has its own memory store, and the first to take the lock has the pipeline.

With the setting `store` the entries are in an engine that proxies on many machines share. Any of their processes may
own it, so each proxy has a pipeline of its own: in its only process, or in the first worker that takes the lock. A
proxy can start before the engine answers. It does not start if the engine answers and the store cannot be used: a wrong
setting should end a rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from knapcache.cache.internal import InternalCache
from knapcache.cache.option_groups import KeyOptions, PolicyOptions, PriceOptions, StoreSource
from knapcache.errors import InvalidInput, NotOwner, StoreError
from knapcache.features.content_log.log import open_content_log
from knapcache.features.limits.limits import LimitWarning
from knapcache.features.limits.opening import open_limits
from knapcache.features.prefix.tier import prefix_tiers
from knapcache.features.semantic.opening import open_semantic
from knapcache.features.webhooks.client import WebhookClient
from knapcache.features.webhooks.delivery import Webhooks
from knapcache.features.webhooks.watch import StateWatcher
from knapcache.model import Endpoint
from knapcache.price.meter import USD_PER_SECOND, Bill, Meter
from knapcache.proxy.admin.app import admin_app
from knapcache.proxy.admin.audit import AuditLog
from knapcache.proxy.admin.context import AdminContext
from knapcache.proxy.admin.shared_sessions import SharedSessions
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.events.events import EventBuffer, payment_of
from knapcache.proxy.events.loop_watchdog import LoopWatchdog
from knapcache.proxy.events.pipeline import EventPipeline
from knapcache.proxy.http.auth import Authenticator
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.loading import LoadedSettings
from knapcache.proxy.settings.secrets import admin_token, data_directory, server_secret
from knapcache.proxy.shared import SharedStoreMember, open_shared_store
from knapcache.proxy.upstream.embedded_model import EmbeddedModel
from knapcache.proxy.upstream.group import route_groups
from knapcache.proxy.upstream.upstream import Upstreams
from knapcache.proxy.workers.owner_link import OwnerClient, OwnerServer
from knapcache.store.base import Store
from knapcache.store.encryption import read_keys
from knapcache.store.redis.store import RedisStore
from knapcache.store.sqlite.owner_lock import OwnerLock
from knapcache.threads import DeadlinePool, run_with_deadline

log = logging.getLogger("knapcache.serve")

OWNER_POLL = 0.5
"""Seconds between two attempts to become the owner."""
LAST_EVENTS_TIMEOUT = 5.0
"""Seconds that a closing process tries to become the owner, to record the events that no owner has received."""
MAX_MEMORY_FALLBACK = 1 << 30
"""Bytes of memory used in place of a file: the configured capacity may be a disk's and not fit into memory."""


Load = Callable[[], LoadedSettings]
RELOADED = ("admin_token", "admin_tokens", "limits", "tenants")
"""Settings that SIGHUP applies."""


class Proxy:
    """One process of the proxy."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started = time.time()
        self.folder = None if settings.memory_only else data_directory(settings.path)
        self.secret = server_secret(self.folder, settings.secret.get_secret_value() if settings.secret else None)
        self.encryption_keys = read_keys(settings.encryption_key_env, settings.encryption_key_file)
        self.admin_token = admin_token(self.folder, settings.fixed_admin_token)
        self.authenticator = Authenticator(settings, self.secret)
        self.embedded_model = (
            EmbeddedModel(
                settings.local_model, settings.local_threads, settings.local_context, settings.local_prompt_cache
            )
            if any(upstream.local for upstream in settings.upstreams)
            else None
        )
        if self.embedded_model is not None and self.embedded_model.name in settings.prices:
            log.warning(
                "Dollars of the embedded model are simulated: it is free, and its price is made up in `prices`."
            )
        self._owner_lock: OwnerLock | None = None
        self._shared_store: RedisStore | None = None
        self._shared: SharedStoreMember | None = None
        if settings.store is not None:
            # Only the process with the pipeline may own a shared store: its history has what the owner decides.
            self._shared_store = open_shared_store(
                settings, self.secret, self.encryption_keys, own=settings.workers == 1 or self._acquire_ownership()
            )
        prices = {**({self.embedded_model.name: None} if self.embedded_model else {}), **settings.prices}
        self.cache, self.memory_fallback = open_cache(
            settings,
            PolicyOptions(name=settings.policy, shadows=settings.shadows, quotas=self.authenticator.quotas()),
            PriceOptions(cost=settings.cost, prices=prices, fallback=settings.fallback_price),
            secret=self.secret,
            encryption_keys=self.encryption_keys,
            store=self._shared_store,
        )
        meter = Meter(settings.cost, prices, settings.fallback_price or USD_PER_SECOND)
        self.upstreams = Upstreams(settings, self.embedded_model, prefix_tiers(settings, self.secret, meter))
        self.groups = route_groups(self.upstreams.all, settings.route)
        self.events = EventBuffer()
        self.content_log = open_content_log(settings, self.folder)
        self.limits = open_limits(
            settings, meter, folder=self.folder, secret=self.secret, shared_store=self._shared_store
        )
        self.semantic = open_semantic(
            settings,
            self.cache,
            self.upstreams,
            meter,
            self.events.append_verdict,
            self._count_payment,
            folder=self.folder,
            secret=self.secret,
            encryption_keys=self.encryption_keys,
            shared_store=self._shared_store,
        )
        self.body_pool = DeadlinePool("knapcache-bodies", threads=1)
        """Parses long bodies. One thread: of several, each could hold the interpreter's lock before the event loop's
        turn comes, and each needs the memory of its body."""
        self.watchdog = LoopWatchdog()
        self.ready = False
        """Whether requests are served: after `open`, before `close`."""
        self.admin_app: Callable[..., Awaitable[None]] | None = None
        """The ASGI app for everything but /v1: the admin API, or the way to the owner's."""
        self._quotas = self.authenticator.quotas()
        self._tokens: AdminTokens | None = None
        """The tokens of the admin API, in the owner process."""
        self._pipeline: EventPipeline | None = None
        self._close_admin: Callable[[], Awaitable[None]] | None = None
        self._webhook_client = WebhookClient()
        self.webhooks = Webhooks(settings.webhook, self._webhook_client.post)
        self._owner_server: OwnerServer | None = None
        self._owner_client: OwnerClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Start serving on the running event loop."""
        if self.embedded_model is not None:
            await self.embedded_model.start()
        if self.semantic is not None:
            self.semantic.tier.start()
        self.limits.start()
        self.webhooks.start()
        self.limits.on_warning(self._report_limit)
        if self.settings.workers == 1 or self._acquire_ownership():
            await self._become_owner()
        else:
            assert self.folder is not None
            self.admin_app = self._owner_client = OwnerClient(self.folder)
            self._owner_client.start()
            self.events.add_consumer(self._owner_client)
            self._tasks.append(asyncio.create_task(self._wait_for_ownership()))
        self._tasks.append(asyncio.create_task(self.events.flush_periodically()))
        if self.content_log is not None:
            self._tasks.append(asyncio.create_task(self.content_log.expire_periodically()))
        self.watchdog.start()
        self.ready = True

    def _acquire_ownership(self) -> bool:
        """Try to take the owner's lock; the operating system frees it when its process ends.

        The store's own lock is not enough: with the memory fallback every process owns a store, and the owner of a
        shared one may be on another machine.
        """
        assert self.folder is not None
        if self._owner_lock is None and (self.settings.store is not None or self.cache.owner):
            with contextlib.suppress(NotOwner):
                self._owner_lock = OwnerLock(self.folder / "pipeline")
        return self._owner_lock is not None

    def _count_payment(self, endpoint: Endpoint, model: str, tenant: str, bill: Bill) -> None:
        """Count a call in the background, for the limits of its tenant, too."""
        self.limits.count_paid(tenant, bill.usd or 0.0, bill.tokens)
        self.events.append_payment(payment_of(endpoint.value, model, tenant, bill))

    async def _wait_for_ownership(self) -> None:
        """Poll until this process is the owner, then replace the owner client by the pipeline."""
        while not self._acquire_ownership():
            await asyncio.sleep(OWNER_POLL)
        client = self._owner_client
        assert client is not None
        self.events.remove_consumer(client)
        unsent = await client.stop()  # first: it must not send to the server that we open next
        await self._become_owner()
        assert self._pipeline is not None
        self._pipeline.consume(unsent)
        self._pipeline.consume_payments(client.unsent_payments)
        self._pipeline.consume_verdicts(client.unsent_verdicts)
        self._owner_client = None
        client.close()

    async def _deliver_last_events(self, client: OwnerClient) -> None:
        """Send the last events to the owner. If it ended first, become the owner and consume them here."""
        unsent = await client.stop(send_unsent=True)
        if (unsent or client.unsent_verdicts or client.unsent_payments) and self._pipeline is None:
            try:
                await asyncio.wait_for(self._wait_for_ownership(), LAST_EVENTS_TIMEOUT)
            except TimeoutError:
                log.error("%d events dropped: the owner process did not accept them.", len(unsent))
        client.close()

    async def _become_owner(self) -> None:
        """Open the event pipeline and the admin API, and serve both to the other processes."""
        if self.semantic is not None:
            self.semantic.tier.sweeps = True
        pipeline = self._pipeline = EventPipeline(
            self.settings, self.folder, self.cache, self.events, self.watchdog, self.encryption_keys
        )
        self.events.add_consumer(pipeline)
        if self.settings.webhook:
            watcher = StateWatcher(self.webhooks, pipeline.upstream_health.report, self._certified_scopes)
            pipeline.add_consumer(watcher)
            self._tasks.append(asyncio.create_task(watcher.run()))
            if self.memory_fallback:
                self.webhooks.send("store_fallback", path=str(self.settings.cache_file))
        fields: dict[str, Any] = {
            "history": pipeline.history,
            "recent": pipeline.recent,
            "upstream_health": pipeline.upstream_health,
        }
        if self._shared_store is not None:
            assert self.folder is not None
            self._shared_store.may_own = True
            self._shared = SharedStoreMember(
                self.settings, self.folder, self._shared_store, self.cache, pipeline, self.started
            )
            fields |= self._shared.admin_fields
        self._tokens = AdminTokens(self.settings, self.folder, self.admin_token)
        if self._shared_store is not None:
            fields["sessions"] = SharedSessions(self._tokens, self._shared_store.documents, self.secret)
        app = admin_app(
            AdminContext(
                settings=self.settings,
                tokens=self._tokens,
                audit=AuditLog(self.folder if self.settings.audit_log else None, self.settings.audit_log_bytes),
                started=self.started,
                cache=self.cache,
                memory_fallback=self.memory_fallback,
                authenticator=self.authenticator,
                flush_events=self.events.flush,
                append_verdict=self.events.append_verdict,
                matches=pipeline.matches,
                semantic=None if self.semantic is None else self.semantic.tier,
                webhooks=self.webhooks.all,
                limits=self.limits,
                metrics=pipeline.metrics,
                **fields,
                request_log=None if pipeline.request_log is None else pipeline.request_log.path,
            )
        )
        self.admin_app, self._close_admin = app, app.state.admin.close
        if self.settings.workers > 1:
            assert self.folder is not None
            self._owner_server = OwnerServer(self.folder, app, pipeline)
            await self._owner_server.open()

    def _report_limit(self, warning: LimitWarning) -> None:
        self.webhooks.send("limit_reached" if warning.percent >= 100 else "limit_warning", **warning._asdict())

    def _certified_scopes(self) -> list[str]:
        tier = None if self.semantic is None else self.semantic.tier
        names = ["", *(tenant.name for tenant in self.settings.tenants)]
        return [] if tier is None else [name for name in names if tier.may_serve(name)]

    def not_ready(self) -> str:
        """Return why this process should get no requests yet, or no more; empty: it should."""
        if not self.ready:
            return "the proxy is starting or stopping"
        starting = self.semantic is not None and self.semantic.tier.starting
        return "the semantic tier is loading its model and labels" if starting else ""

    def failing_upstreams(self) -> list[str]:
        """Return one line for each upstream that fails now. Only the owner process knows them."""
        states = self._pipeline.upstream_health.report() if self._pipeline is not None else []
        return [f"upstream {one['name']} fails: {one['reason']}" for one in states if one["failing_now"]]

    async def reload(self, load: Load) -> None:
        """Read the settings again, and apply tenants, limits and admin tokens.

        An error changes nothing. Other settings need a restart; the log names those that have changed.
        """
        try:
            new = (await asyncio.to_thread(load)).settings
            if bool(new.tenants) != bool(self.settings.tenants):
                raise InvalidInput("tenants: the step from no tenants to some, or back, needs a restart")
            applied = self.settings.model_copy(update={name: getattr(new, name) for name in RELOADED})
            if self._tokens is not None:
                await asyncio.to_thread(self._tokens.apply, applied)
        except InvalidInput as error:
            log.error("Settings not reloaded: %s", error)
            return
        self.authenticator.replace_tenants(applied.tenants)
        if self.semantic is not None:
            self.semantic.tier.configure(applied)
        self.limits.configure(applied)
        self.settings = applied
        log.info("Settings reloaded: tenants, limits and admin tokens.")
        others = [name for name in Settings.model_fields if getattr(new, name) != getattr(applied, name)]
        if self.authenticator.quotas() != self._quotas:
            others.append("quota of tenants")
        if others:
            log.warning("Changed settings that need a restart: %s", ", ".join(others))

    async def close(self) -> None:
        """Stop serving: flush events, write files, close connections."""
        self.ready = False
        self.watchdog.stop()
        self.body_pool.close()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self.semantic is not None:
            await self.semantic.close()
        await self.limits.close()
        await self.webhooks.close()
        self._webhook_client.close()
        if self._owner_client is not None:
            await self._deliver_last_events(self._owner_client)
        if self._owner_server is not None:
            await self._owner_server.close()
        if self._close_admin is not None:
            await self._close_admin()
        if self._pipeline is not None:
            await asyncio.to_thread(self._pipeline.close)
        if self.content_log is not None:
            await asyncio.to_thread(self.content_log.close)
        if self._shared is not None:
            await self._shared.close()
        self.upstreams.close()
        if self.embedded_model is not None:
            await self.embedded_model.stop()
        if not await run_with_deadline(self.cache.close, max(5.0, self.settings.grace)):
            log.error("Store not closed: it does not answer. Committed answers are safe.")
        if self._owner_lock is not None:
            self._owner_lock.release()


def open_cache(
    settings: Settings,
    policy: PolicyOptions,
    price: PriceOptions,
    *,
    secret: bytes,
    encryption_keys: tuple[bytes, ...],
    store: Store | None,
) -> tuple[InternalCache, bool]:
    """Return the cache, and whether it is a memory store in place of a file that cannot be opened.

    store: one that is open already; None: that of the data directory, or of memory.
    """
    keys, ttl, wait = KeyOptions(secret=secret), settings.ttl, settings.wait
    open_source = partial(InternalCache, policy=policy, price=price, keys=keys, ttl=ttl, wait=wait)
    if store is not None:
        return open_source(StoreSource(store=store)), False
    path = settings.cache_file
    source = StoreSource(
        path=path,
        capacity=settings.capacity,
        synchronous=settings.synchronous,
        encryption_key=encryption_keys or None if path else None,
        exclusive=True,  # the data directory is the proxy's own
    )
    try:
        return open_source(source), False
    except (StoreError, InvalidInput) as error:
        if path is None or not (isinstance(error, StoreError) or path.is_dir()):
            raise  # the settings are wrong, not the file
        capacity = min(settings.capacity, MAX_MEMORY_FALLBACK) // settings.workers
        cache = open_source(StoreSource(capacity=capacity))
        log.error(
            "STORE NOT OPENED: answers are kept in memory (%d bytes) until the next start. Reason: %s", capacity, error
        )
        return cache, True
