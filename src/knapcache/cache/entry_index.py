"""What is known of every answer that is kept, by its number in the policy's table: a record an id, no object an answer.

    room and residence    are the policy's own
    the rest              whose it is, of which model, its cost and times: written here when the answer is admitted

So people can be shown what is kept, and quotas be held, without a look at the disk. A record outlives its answer, and
says nothing without the policy's word that the answer is resident. Rejected: the store's heads as objects, 300 bytes an
answer instead of 48.

Names of models and tenants are numbered; when many of the numbered ones are in no record any more, they are numbered
anew.

    Invariant: of a resident id, tenant, model, cost and times are those of the entry in the store.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from knapcache.errors import CorruptState
from knapcache.estimate.discount import HALF_LIVES
from knapcache.kernel import Records
from knapcache.policy.adaptive.policy import Adaptive
from knapcache.policy.base import Policy
from knapcache.store.base import Entry, EntryInfo

RECORD = np.dtype(
    [
        ("created", "f8"),
        ("expires", "f8"),  # ∞: never
        ("cost", "f8"),
        ("usd", "f8"),  # NaN: nobody knows
        ("seconds", "f8"),
        ("model", "i4"),
        ("tenant", "i4"),
    ]
)
FEW_NAMES = 1024

Ids = npt.NDArray[np.int64]


class Names:
    """Texts by number."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        self._most = FEW_NAMES

    def find(self, text: str) -> int:
        """Its number; −1 where it has none."""
        return self._numbers.get(text, -1)

    def number(self, text: str, used: npt.NDArray[np.int32]) -> int:
        """Its number, an old one or a new one. `used` are the numbers in records: changed, where all are given anew."""
        found = self._numbers.get(text)
        if found is None:
            if len(self.texts) >= self._most:
                self._anew(used)
            found = self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return found

    def _anew(self, used: npt.NDArray[np.int32]) -> None:
        kept, places = np.unique(used, return_inverse=True)
        used[:] = places
        self.texts = [self.texts[k] for k in kept.tolist()]
        self._numbers = {text: k for k, text in enumerate(self.texts)}
        self._most = max(FEW_NAMES, 2 * len(self.texts))


class EntryTable(NamedTuple):
    """Some answers, copied out: whoever has it needs no lock."""

    keys: list[bytes]
    room: npt.NDArray[np.int64]
    requests: npt.NDArray[np.float64]
    records: Records
    models: list[str]
    tenants: list[str]


class Index:
    """Records by id. The caller's lock is around every call."""

    def __init__(self, ids: int) -> None:
        self.records: Records = np.zeros(ids, RECORD)
        self.models, self.tenants = Names(), Names()
        self._written = 0

    def note(self, i: int, kept: Entry | EntryInfo) -> None:
        """The answer of id i is this one from now on."""
        self._written = max(self._written, i + 1)
        records = self.records[: self._written]
        records[i] = (
            kept.created,
            np.inf if kept.expires is None else kept.expires,
            kept.cost,
            kept.meta.get("usd", np.nan),
            kept.seconds,
            0,
            0,
        )
        # One after the other: a number that was just given must be in its record before the next one is asked for.
        records["model"][i] = self.models.number(kept.model, records["model"])
        records["tenant"][i] = self.tenants.number(kept.tenant, records["tenant"])

    def tenant(self, i: int) -> str:
        """Whose the answer of id i is."""
        return self.tenants.texts[int(self.records["tenant"][i])]

    def by_tenant(self, policy: Policy) -> dict[str, int]:
        """Room that each has now."""
        ids = np.flatnonzero(policy.rows["resident"][: self._written])
        room = np.bincount(self.records["tenant"][ids], policy.rows["entry_size"][ids])
        return {self.tenants.texts[k]: int(room[k]) for k in np.flatnonzero(room).tolist()}

    def check(self, heads: dict[int, EntryInfo]) -> None:
        """Records are those of the entries in the store."""
        for i, head in heads.items():
            record = self.records[i]
            numbers = (record["created"], record["cost"], record["seconds"])
            if (self.tenant(i), self.models.texts[record["model"]], *numbers) != (
                head.tenant, head.model, head.created, head.cost, head.seconds,
            ):  # fmt: skip
                raise CorruptState(f"what is known of id {i} is not what lies in the store")

    def kept(self, policy: Policy, keys: list[bytes], ids: Ids) -> EntryTable:
        """A copy of what is known of these ids."""
        return EntryTable(
            [keys[i] for i in ids.tolist()],
            policy.rows["entry_size"][ids],
            requests_at(policy, ids),
            self.records[ids],
            list(self.models.texts),
            list(self.tenants.texts),
        )


def entry_table(heads: list[EntryInfo], counted: dict[bytes, float]) -> EntryTable:
    """The same from a store's heads, for those who have no policy: with the requests that somebody has counted."""
    index = Index(max(1, len(heads)))
    for i, head in enumerate(heads):
        index.note(i, head)
    return EntryTable(
        [head.key for head in heads],
        np.array([head.size for head in heads], np.int64),
        np.array([max(1.0, counted.get(head.key, 1.0)) for head in heads]),
        index.records[: len(heads)],
        index.models.texts,
        index.tenants.texts,
    )


def requests_at(policy: Policy, ids: Ids | slice) -> npt.NDArray[np.float64]:
    """Requests of these ids, as a policy counts them: by the longest of its half-lives, or since an answer came in.

    1 where it does not count: an answer that is kept was asked for once at least.
    """
    found: npt.NDArray[np.float64]
    names = policy.rows.dtype.names or ()
    if isinstance(policy, Adaptive):
        faded = 2.0 ** ((policy.rows["last"][ids] - policy.head["t"][0]) / HALF_LIVES[0])
        found = policy.rows["recent"][ids, 0] * faded
    elif "requests" in names:
        found = policy.rows["requests"][ids].astype(float)
    else:
        found = np.ones(len(policy.rows["entry_size"][ids]))
    return np.asarray(np.maximum(found, 1.0))
