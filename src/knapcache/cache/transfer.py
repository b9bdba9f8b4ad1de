"""Entries as lines of JSON: export from a store, import into another one.

    line 1         {"format": "knapcache entries", "version": 1, "created": …}, with the policy and the capacity of the
                   source, which a new cache gets
    other lines    one entry each: canonical request and payload (text, or {"base64": …} for bytes that are not UTF-8),
                   model, cost, seconds, created, expires, meta (with tags), requests as the policy counted them, the
                   principal of its namespace if it is known, and a digest of request and payload

Keys are not in the file. They depend on the secret of a cache, so they are computed anew from the canonical requests.
One kind of request cannot be moved to another secret: embeddings with more than a kilobyte of other fields, whose
canonical request has a digest under the old secret. They are imported, and never hit.

An import goes through the policy of the target, as answers that were just paid for: its capacity holds. In a
store that another process owns, entries are handed over to that process, which decides. An entry that is as new or
newer in the target stays, so a second import of a file changes nothing. The requests are in the metadata of the entry.
The owner's policy counts them (imported.py), so it ranks the entries as the source did. They are neither hits nor
savings of the target. What the source's policy knows of requests whose answers it does not hold is not in the file.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress
from typing import Any, BinaryIO, NamedTuple

import orjson

from knapcache.cache.coordinator import AdmissionOpener, Coordinator
from knapcache.cache.entry_index import IMPORTED
from knapcache.cache.imported import MAX_REQUESTS
from knapcache.cache.ledger import Ledger
from knapcache.cache.opening import size_limit_of_store
from knapcache.cache.options import DEFAULT_SECRET
from knapcache.cache.roles import Owner
from knapcache.cache.snapshot import read_snapshot
from knapcache.cache.transfer_checks import checked_meta, checked_model
from knapcache.errors import InvalidInput, StoreError
from knapcache.keys.canonical import Keyer
from knapcache.keys.outline import read_canonical, with_namespace
from knapcache.policy import registry
from knapcache.price.weights import amount
from knapcache.store.base import Entry, EntryInfo, Store, expired, wall_clock

FORMAT, VERSION = "knapcache entries", 1
MAX_LINE = 1 << 28
"""Bytes of a line. An answer of the proxy has 128 MB at most, unless `max_answer` is larger."""
MAX_AHEAD = 86_400.0
"""Seconds by which the clock of the source may be ahead."""
HANDOVER_SECONDS, PAUSE = 60.0, 0.02
"""How long an import waits for space where entries are handed over, and between two attempts."""
DECISION_SECONDS, DECISION_PAUSE = 5.0, 0.25
"""How long an import waits for the next entry that the owner of the store has stored, and between two looks at it."""
MAX_WAITING, MAX_WAITING_BYTES = 256, 1 << 20
"""Entries that are decided together, and their bytes. They have to fit into the queue of the store."""
SWITCH_SECONDS = 0.0005
"""The interpreter's switch interval of `knapcache import`. The writer thread takes the interpreter's lock about eight
times for a transaction. Each time it waits for the interval, 5 ms by default, because another thread computes."""
NO_ID = -1
NUMBERS = ("cost", "seconds", "created")


class TransferEntry(NamedTuple):
    """An entry of a file."""

    entry: Entry
    """Without key and size, and with the namespace of the source."""
    requests: float
    principal: tuple[str, ...] | None
    """The owner of the namespace, such as ("tenant", its name); None: not known."""


@dataclass
class ImportResult:
    """Counts of the entries of a file, by what the import did with them."""

    stored: int = 0
    """Admitted. Of those that were handed over to another process: in the cache, after `finish`."""
    present: int = 0
    expired: int = 0
    rejected: int = 0
    """The policy does not admit them, or they are too large."""
    failed: int = 0
    """Admitted, but the store could not write them, as `finish` has found."""


class TransferHeader(NamedTuple):
    """The first line of a file: the policy and the capacity of its source. None: not known."""

    policy: str | None
    capacity: int | None
    """The size limit that the source was opened with."""


def read_source(store: Store) -> tuple[list[EntryInfo], dict[bytes, float], TransferHeader]:
    """Return the metadata of all entries, the most valuable per byte first, the requests by key, and the header."""
    snapshot = read_snapshot(store.load_snapshot() or b"")
    requests = {} if snapshot is None else snapshot.requests()
    infos = sorted(
        store.scan(), key=lambda info: (-requests.get(info.key, 1.0) * info.cost / max(1, info.size), info.key)
    )
    return infos, requests, TransferHeader(None if snapshot is None else snapshot.name, size_limit_of_store(store))


def header_line(header: TransferHeader) -> bytes:
    """Return the first line of a file."""
    return orjson.dumps({"format": FORMAT, "version": VERSION, "created": wall_clock(), **header._asdict()}) + b"\n"


def read_header(file: BinaryIO) -> TransferHeader:
    """Read the first line of a file. InvalidInput unless it is that of a file that can be read."""
    try:
        header = orjson.loads(file.readline(MAX_LINE))
        found, version = header["format"], header["version"]
    except (ValueError, TypeError, LookupError):
        found, version = None, None
    if found != FORMAT:
        raise InvalidInput("this is not a file of `knapcache export`: the first line must say so")
    if version != VERSION:
        raise InvalidInput(f"the file has version {version!r} of the format; this knapcache reads version {VERSION}")
    policy, capacity = header.get("policy"), header.get("capacity")
    known = isinstance(policy, str) and policy in registry.SPECS and registry.SPECS[policy].online
    return TransferHeader(policy if known else None, capacity if type(capacity) is int and capacity > 0 else None)


def entry_line(entry: Entry, requests: float, principal: tuple[str, ...] | None) -> bytes:
    """Return the line of an entry."""
    fields: dict[str, Any] = {
        "request": _text(entry.request),
        "payload": _text(entry.payload),
        "model": entry.model,
        "cost": entry.cost,
        "seconds": entry.seconds,
        "created": entry.created,
        "expires": entry.expires,
        "meta": dict(entry.meta),
        "requests": requests,
        "digest": _digest(entry.request, entry.payload),
    }
    if principal is not None:
        fields["principal"] = list(principal)
    return orjson.dumps(fields) + b"\n"


def read_line(line: bytes) -> TransferEntry:
    """Return the entry of a line. InvalidInput if it is damaged."""
    try:
        fields = orjson.loads(line)
    except ValueError:
        raise InvalidInput("it is not JSON") from None
    if not isinstance(fields, dict):
        raise InvalidInput("it must be a JSON object")
    request, payload = _bytes(fields, "request"), _bytes(fields, "payload")
    if fields.get("digest") != _digest(request, payload):
        raise InvalidInput("request and payload do not have the digest of the line: it is damaged")
    parts = read_canonical(request)
    if parts is None:
        raise InvalidInput("its request cannot be read; it may be of another version of knapcache")
    numbers = {name: amount(name, fields.get(name)) for name in NUMBERS}
    expires = None if fields.get("expires") is None else amount("expires", fields["expires"])
    meta = checked_meta(fields.get("meta"), parts.kind, parts.body, payload)
    model, principal = checked_model(fields.get("model")), fields.get("principal")
    if principal is not None and not (isinstance(principal, list) and all(isinstance(each, str) for each in principal)):
        raise InvalidInput("principal must be a list of texts")
    return TransferEntry(
        entry=Entry(
            key=b"",
            tenant=parts.namespace,
            model=model,
            size=0,
            **numbers,
            expires=expires,
            meta=meta,
            request=request,
            payload=payload,
        ),
        requests=amount("requests", fields.get("requests")),
        principal=None if principal is None else tuple(principal),
    )


class EntryImporter:
    """Puts entries into a store, through the policy of its owner. Close it at the end; that closes the store.

    secret      that of the target's keys; None: it has none
    namespace   returns the namespace in the target, from that of the source and the principal, if it is known
    """

    def __init__(
        self,
        store: Store,
        secret: bytes | None,
        policy: str,
        namespace: Callable[[str, tuple[str, ...] | None], str],
    ) -> None:
        self.result = ImportResult()
        self._keyer = Keyer(DEFAULT_SECRET if secret is None else secret)
        self._namespace = namespace
        self._waiting: dict[bytes, Entry] = {}  # for a decision, in the order of the file
        self._waiting_bytes = 0
        self._handed_over: dict[bytes, float] = {}  # when they were created, by key
        self._ledger = Ledger()
        opener = AdmissionOpener(policy, (), self._ledger, None, {}, wall_clock)
        self._coordinator = Coordinator(store, opener, self._ledger, wall_clock, report_hits=True)

    @property
    def owner(self) -> bool:
        """Whether this process decides; False: another process owns the store, and entries are handed over to it."""
        return self._coordinator.role.is_owner

    def add(self, found: TransferEntry) -> None:
        """Import one entry, or let it wait for others: `settle` or `finish` decides about it at the latest.

        StoreError if the owner takes no more entries; InvalidInput if it cannot be stored.
        """
        entry, now = self._keyed(found), wall_clock()
        if entry.created > now + MAX_AHEAD:
            raise InvalidInput("it was created in the future, so nothing newer would take its place")
        if expired(entry.expires, now):
            self.result.expired += 1
            return
        if entry.key in self._waiting:
            self.settle()
        self._waiting[entry.key] = entry
        self._waiting_bytes += entry.size
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes >= MAX_WAITING_BYTES or not self.owner:
            self.settle()

    def settle(self) -> None:
        """Decide about the entries that wait, or hand them over."""
        entries, self._waiting, self._waiting_bytes = list(self._waiting.values()), {}, 0
        role = self._coordinator.role
        if not isinstance(role, Owner):
            entries = [entry for entry in entries if not self._is_present(entry)]
            admitted = [self._hand_over(entry) for entry in entries]
            self._handed_over |= {entry.key: entry.created for entry in compress(entries, admitted)}
            self.result.rejected += len(entries) - sum(admitted)
            return
        first = 0
        for k in role.admission.held(entry.key for entry in entries):
            self._decide(role, entries[first:k])  # they may evict or replace what the store has
            first = k + self._is_present(entries[k])
        self._decide(role, entries[first:])

    def _is_present(self, entry: Entry) -> bool:
        """Return whether the store has an entry that is as new or newer, and count it."""
        stored = self._coordinator.store.peek(entry.key)
        present = stored is not None and stored.created >= entry.created
        self.result.present += present
        return present

    def _decide(self, role: Owner, entries: list[Entry]) -> None:
        admitted = role.settle_many([(NO_ID, entry) for entry in entries], blocking=True)
        for entry in compress(entries, admitted):
            role.imported.add(entry)
            self.result.stored += entry.key not in self._handed_over
        self.result.rejected += len(entries) - sum(admitted)

    def finish(self) -> None:
        """Let the policy count the requests of the entries. Wait until another owner has decided about them.

        It has decided when none of them has appeared in the store for DECISION_SECONDS.
        """
        self.settle()
        role = self._coordinator.role
        if isinstance(role, Owner):
            role.imported.count()
            self._coordinator.store.flush()
            self.result.failed = self._ledger.report().get("store_errors", 0)
            self.result.stored -= self.result.failed
        waiting, changed = self._handed_over, time.monotonic()
        while waiting and time.monotonic() - changed < DECISION_SECONDS:
            time.sleep(DECISION_PAUSE)
            infos = self._coordinator.store.scan()
            stored = [info.key for info in infos if waiting.get(info.key, math.inf) <= info.created]
            for key in stored:
                del waiting[key]
            if stored:
                self.result.stored += len(stored)
                changed = time.monotonic()
        self.result.rejected += len(waiting)
        waiting.clear()

    def _keyed(self, found: TransferEntry) -> Entry:
        _, source, model, _, cost, seconds, created, expires, meta, request, payload = found.entry
        tenant = self._namespace(source, found.principal)
        if tenant != source:
            request = with_namespace(request, tenant)
        meta = {**meta, IMPORTED: max(1, round(min(found.requests, MAX_REQUESTS)))}
        key = self._keyer.digested(request).digest
        rest = cost, seconds, created, expires, meta, request, payload
        size = self._coordinator.store.entry_size(Entry(key, tenant, model, 0, *rest))
        return Entry(key, tenant, model, size, *rest)

    def _hand_over(self, entry: Entry) -> bool:
        """Hand an entry over to the owner. Wait while there is no space: the owner takes entries every second.

        Return False for an entry that is too large.
        """
        if entry.size > self._coordinator.store.max_entry_size:
            return False
        deadline, network = time.monotonic() + HANDOVER_SECONDS, self._coordinator.network
        while True:
            try:
                if network is None:
                    self._coordinator.store.hand_over(entry)
                else:
                    network.hand_over(entry, displace=False)
                return True
            except InvalidInput:
                return False
            except StoreError as error:
                if time.monotonic() > deadline:
                    raise StoreError(f"the owner of the cache takes no entries: {error}") from None
            time.sleep(PAUSE)

    def close(self) -> None:
        """Write what is pending, and close the store. Entries that wait for a decision are lost: `finish` first."""
        self._coordinator.close()


@contextlib.contextmanager
def switching_threads_often() -> Iterator[None]:
    """Shorten the interpreter's switch interval, for a process that does nothing but an import."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def lines_of(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines after the header that are not empty, with their numbers."""
    number = 1
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise InvalidInput(f"line {number} has more than {MAX_LINE} bytes")
        if line.strip():
            yield number, line


def _text(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(fields: dict[str, Any], name: str) -> bytes:
    value = fields.get(name)
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    try:
        return base64.b64decode(value["base64"], validate=True)  # type: ignore[index]
    except (TypeError, LookupError, ValueError):
        raise InvalidInput(f'{name} must be a text, or {{"base64": …}}') from None


def _digest(request: bytes, payload: bytes) -> str:
    return hashlib.sha256(b"%d %b%b" % (len(request), request, payload)).hexdigest()[:16]
