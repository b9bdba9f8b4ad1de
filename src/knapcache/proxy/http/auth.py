"""Authentication: from a request's credentials to a principal with a name and a namespace.

    principal = ("group", its name)            a tenant in a group: shares answers with the group's other tenants
                ("tenant", its name)           a tenant of its own
                ("key", organisation, project, credentials…)   no tenants configured: the client's own provider keys
                ("gateway", its headers, organisation, project, credentials…)   the same, with keys of gateways
                ("everyone",)                  no tenants configured, share_all
                ("anonymous",)                 no credential, if that is allowed
    namespace = HMAC-SHA256(server secret, principal), 32 hex digits

Nothing else in a request affects its namespace, so a client cannot ask for another's. The principal's kind is part of
it, and it is encoded as JSON, so no two principals have the same encoding. Without the secret a namespace reveals
nothing about its principal, and credentials cannot be tested against it.

Without tenants every credential of a request is part of its principal, also those for gateways: we cannot know which
one the provider uses. A dummy credential that many clients send beside their own must not merge them. The names are in
`exchange/headers.py`. With tenants, a key for a gateway neither identifies a caller nor separates those of one tenant.

A credential that is malformed, or unknown when tenants are configured, is rejected. It never counts as no credential.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from knapcache.exchange.headers import CREDENTIALS, GATEWAY_CREDENTIALS
from knapcache.proxy.settings import Settings, TenantSettings
from knapcache.proxy.settings.secrets import digest_of, principal_namespace

MAX_CACHED = 4096
"""Credentials whose principal is cached, oldest evicted first. A flood of made-up credentials costs valid ones a hash
again, and no memory."""
MAX_CACHED_LENGTH = 4096
"""Characters of a cached credential: the cache takes at most 16 MB."""
BEARER = "bearer"
BLANKS = " \t"
"""What HTTP allows around a value. `str.strip` also removes characters that a provider may count."""
ANONYMOUS, EVERYONE = "anonymous", "everyone"
HEADERS = (*CREDENTIALS, *GATEWAY_CREDENTIALS)


class Principal(NamedTuple):
    """The authenticated caller."""

    name: str
    """For people: the tenant's, `caller-3f2a9c1e` from the namespace, `anonymous`, or `everyone`."""
    namespace: str
    """32 hex digits. Principals with the same namespace share answers."""
    credential: str | None
    """The credential to pass on to the upstream; None if it is one of ours, or if there is none."""


class Authenticator:
    """Finds principals by their credentials."""

    def __init__(self, settings: Settings, secret: bytes) -> None:
        self._secret = secret
        self._share_all = settings.share_all
        self._tenants_only = bool(settings.tenants)
        self._everyone = self._namespace(EVERYONE)
        anonymous = Principal(ANONYMOUS, self._namespace(ANONYMOUS), None)
        self._anonymous = anonymous if settings.allow_anonymous else None
        self._on_change: list[Callable[[], None]] = []
        self.replace_tenants(settings.tenants)

    def replace_tenants(self, tenants: Iterable[TenantSettings]) -> None:
        """Use these tenants from now on, and drop everything that was cached about others."""
        # By the key's digest. Plain SHA-256 suffices: tenants' keys are long and random, so there is nothing to guess,
        # which is what slow hashes are for. The time of a dict lookup reveals nothing: an attacker would need keys
        # whose digests begin alike.
        self._tenants: dict[str, tuple[Principal, bool]] = {}
        self._names = {self._namespace(ANONYMOUS): ANONYMOUS, self._everyone: EVERYONE}
        self._namespaces = {name: namespace for namespace, name in self._names.items()}
        self._quotas: dict[str, int] = {}
        for tenant in tenants:
            namespace = (
                self._namespace("group", tenant.group) if tenant.group else self._namespace("tenant", tenant.name)
            )
            self._names[namespace] = tenant.group or tenant.name
            self._namespaces.setdefault(tenant.group or tenant.name, namespace)
            self._namespaces[tenant.name] = namespace  # takes precedence over a group of that name
            if tenant.quota is not None:
                self._quotas[namespace] = tenant.quota
            for digest in tenant.keys:
                self._tenants[digest] = Principal(tenant.name, namespace, None), tenant.pass_key
        # By the credentials themselves. Python's hash of text is randomised per process, so timing reveals nothing
        # here. Invariant: at most MAX_CACHED.
        self._cached: dict[tuple[str | None, ...], Principal] = {}
        for forget in self._on_change:
            forget()

    def on_change(self, forget: Callable[[], None]) -> None:
        """Call `forget` whenever the tenants change: who caches principals must drop them."""
        self._on_change.append(forget)

    def authenticate(self, headers: Mapping[str, str]) -> Principal | None:
        """Return the principal, or None if there is none (401). headers: by lower-case name."""
        credentials = tuple(map(headers.get, HEADERS))
        return self._cached.get(credentials) or self._authenticate_uncached(credentials)

    def name_of(self, namespace: str) -> str:
        """Return a namespace's name for people."""
        return self._names.get(namespace) or f"caller-{namespace[:8]}"

    def namespace_of(self, name: str) -> str | None:
        """Return the namespace of a tenant or a group, or None if the settings do not name it."""
        return self._namespaces.get(name)

    def quotas(self) -> dict[str, int]:
        """Return the most bytes of each namespace that has a limit."""
        return dict(self._quotas)

    def _authenticate_uncached(self, sent: tuple[str | None, ...]) -> Principal | None:
        authorization, *others, organisation, project = sent[: len(CREDENTIALS)]
        scheme, _, bearer = (authorization or "").strip(BLANKS).partition(" ")
        if scheme and scheme.lower() != BEARER:
            return None
        stripped = [each.strip(BLANKS) for each in (bearer, *others) if each]
        credentials = dict.fromkeys(filter(None, stripped))
        # No value contains a line break.
        gateways = zip(GATEWAY_CREDENTIALS, sent[len(CREDENTIALS) :], strict=True)
        gateway = "\n".join(f"{name}: {value}" for name, value in gateways if value)
        principal = self._principal(list(credentials), gateway, organisation or "", project or "")
        # Failures are not cached: repeating them costs the client more than us.
        if principal is not None and sum(len(part) for part in sent if part) <= MAX_CACHED_LENGTH:
            if len(self._cached) >= MAX_CACHED:
                del self._cached[next(iter(self._cached))]
            self._cached[sent] = principal
        return principal

    def _principal(self, credentials: list[str], gateway: str, organisation: str, project: str) -> Principal | None:
        """gateway: the headers with keys of gateways, or nothing."""
        credential = credentials[0] if credentials else None
        if credential is None and (not gateway or (self._tenants_only and self._anonymous is None)):
            return self._anonymous
        if self._tenants_only and credential is not None:
            principal, pass_key = self._tenants.get(digest_of(credential), (None, False))
            return principal._replace(credential=credential) if principal and pass_key else principal
        if self._share_all:
            return Principal(EVERYONE, self._everyone, credential)
        kind = ("gateway", gateway) if gateway else ("key",)
        namespace = self._namespace(*kind, organisation, project, *credentials)
        return Principal(f"caller-{namespace[:8]}", namespace, credential)

    def _namespace(self, *principal: str) -> str:
        return principal_namespace(self._secret, *principal)
