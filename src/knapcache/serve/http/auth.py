"""Who asks: from the credential of a request to a name and a namespace.

    principal = ("group", its name)            a tenant in a group: shares with the others of the group
                ("tenant", its name)           a tenant of its own
                ("key", organisation, project, credentials…)   no tenants: the caller's own keys at the provider
                ("everyone",)                  no tenants, share_all
                ("anonymous",)                 no credential, where that is allowed
    namespace = HMAC-SHA256(server's secret, principal), 32 hex digits

Nothing else of a request has a say in its namespace: a caller cannot ask for another's. The kind of the principal is
part of it, and it is written as JSON, so no two principals are one text. Without the secret nobody can tell from a
namespace whose it is, or try keys against it.

Without tenants every credential that a request shows is part of the principal, for all of them are passed on: we do not
know which one the provider looks at, and one that many know (a dummy, beside the true one) must not make them one.

A credential that is there and cannot be read, or is unknown where tenants are configured, is refused. It is never taken
for none.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import NamedTuple

from knapcache.exchange.exchange import CREDENTIALS
from knapcache.serve.settings import Settings
from knapcache.serve.settings.secrets import digest_of

REMEMBERED = 4096
"""Credentials whose caller is known by heart. The oldest is forgotten for a new one: a flood of made-up credentials
makes true ones cost a hash again, and memory stays as it is."""
LONGEST = 4096
"""Characters of credentials that are remembered: REMEMBERED of the longest take 16 MB and not more."""
BEARER = "bearer"


class Principal(NamedTuple):
    """Who asks."""

    name: str
    """For people: the tenant's, `caller-3f2a9c1e` from the namespace, `anonymous`, or `everyone`."""
    namespace: str
    """Whose answers: 32 hex digits."""
    key: str | None
    """The credential to pass on upstream; None where it is ours and not the provider's, or where there is none."""


class Authenticator:
    """All who may ask."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        self._secret = secret
        self._share_all = settings.share_all
        self._only_tenants = bool(settings.tenants)
        self._anonymous = (
            Principal("anonymous", self._namespace("anonymous"), None) if settings.allow_anonymous else None
        )
        self._everyone = self._namespace("everyone")
        # By the digest of the key. A plain SHA-256 is enough, for keys of tenants are long and random: there is nothing
        # to guess, which slow hashes like scrypt are for. And the time of a look into a dict tells nothing: one would
        # have to know keys whose digests begin alike to learn from it.
        self._tenants: dict[str, tuple[Principal, bool]] = {}
        self._names = {self._namespace("anonymous"): "anonymous", self._everyone: "everyone"}
        self._namespaces = {name: namespace for namespace, name in self._names.items()}
        self._quotas: dict[str, int] = {}
        for tenant in settings.tenants:
            namespace = (
                self._namespace("group", tenant.group) if tenant.group else self._namespace("tenant", tenant.name)
            )
            self._names[namespace] = tenant.group or tenant.name
            self._namespaces.setdefault(tenant.group or tenant.name, namespace)
            self._namespaces[tenant.name] = namespace  # rather than a group of that name
            if tenant.quota is not None:
                self._quotas[namespace] = tenant.quota
            for digest in tenant.keys:
                self._tenants[digest] = Principal(tenant.name, namespace, None), tenant.pass_key
        # By the credential itself: Python's hash of text is keyed with a number of the process, so time tells nothing
        # here either. Invariant: at most REMEMBERED.
        self._known: dict[tuple[str | None, ...], Principal] = {}

    def admit(self, headers: Mapping[str, str]) -> Principal | None:
        """Who asks, from headers with names in lower case; None: nobody who may (401)."""
        shown = tuple(map(headers.get, CREDENTIALS))
        return self._known.get(shown) or self._meet(shown)

    def name_of(self, namespace: str) -> str:
        """For people: whose answers these are."""
        return self._names.get(namespace) or f"caller-{namespace[:8]}"

    def namespace_of(self, name: str) -> str | None:
        """Whose answers are meant by a tenant's name, or a group's; None for callers that the settings do not name."""
        return self._namespaces.get(name)

    def quotas(self) -> dict[str, int]:
        """Most bytes, by namespace."""
        return dict(self._quotas)

    def _meet(self, shown: tuple[str | None, ...]) -> Principal | None:
        """The same, for one not seen before, or long ago."""
        authorization, *others, organisation, project = shown
        scheme, _, bearer = (authorization or "").strip().partition(" ")
        if scheme and scheme.lower() != BEARER:
            return None
        found = dict.fromkeys(given.strip() for given in (bearer, *others) if given and given.strip())
        caller = self._caller(list(found), organisation, project)
        if caller is not None and sum(len(part) for part in shown if part) <= LONGEST:
            # Those who are refused are not remembered: finding out again costs them more than us.
            if len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[shown] = caller
        return caller

    def _caller(self, credentials: list[str], organisation: str | None, project: str | None) -> Principal | None:
        if not credentials:
            return self._anonymous
        credential = credentials[0]
        if self._only_tenants:
            caller, passed = self._tenants.get(digest_of(credential), (None, False))
            return caller._replace(key=credential) if caller and passed else caller
        if self._share_all:
            return Principal("everyone", self._everyone, credential)
        namespace = self._namespace("key", organisation or "", project or "", *credentials)
        return Principal(f"caller-{namespace[:8]}", namespace, credential)

    def _namespace(self, *principal: str) -> str:
        text = json.dumps(principal).encode()  # ASCII: whatever a header held, it can be written
        return hmac.new(self._secret, b"namespace\0" + text, hashlib.sha256).hexdigest()[:32]
