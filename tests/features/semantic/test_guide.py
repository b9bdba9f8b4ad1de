"""The numbers and names in docs/guides/semantic.md are those of the code."""

from __future__ import annotations

import re

from knapcache.cache.values import SimilarMatch
from knapcache.exchange.headers import similar_headers
from knapcache.features.semantic.audits import AUDIT_RATE, AUDIT_START, Audits
from knapcache.features.semantic.call import FIND_SECONDS
from knapcache.features.semantic.certificate import ALPHA, LEVELS
from knapcache.features.semantic.event import MAX_MATCHES
from knapcache.features.semantic.freshness import RECENT_FINGERPRINTS
from knapcache.features.semantic.learner import CANDIDATES, MIN_COSINE, RECOVERY_LABELS
from knapcache.features.semantic.log import MAX_LABELS
from knapcache.features.semantic.question import MAX_CHARACTERS, MAX_TOKENS
from knapcache.features.semantic.tier import MAX_SCOPE_WAITING, MAX_WAITING
from tests.features.semantic.test_certificate import e_value
from tests.support import ROOT

GUIDE = (ROOT / "docs" / "guides" / "semantic.md").read_text(encoding="utf-8")
TEXT = " ".join(GUIDE.split())


def test_the_table_has_the_least_number_of_labels_that_certifies_a_level() -> None:
    rows = re.findall(r"^\| (0\.\d+) \| ([\d, |]+) \|$", GUIDE, re.MULTILINE)
    assert len(rows) == 5
    needed = len(LEVELS) / ALPHA
    for error, cells in rows:
        for wrong, labels in zip((0, 1, 2, 5, 10), cells.replace(",", "").split(" | "), strict=True):
            assert e_value(int(labels), wrong, float(error)) >= needed > e_value(int(labels) - 1, wrong, float(error))


def test_the_limits_in_the_guide_are_those_of_the_code() -> None:
    assert f"more than {MAX_TOKENS} tokens or {MAX_CHARACTERS} characters" in TEXT
    assert CANDIDATES == 6, "the guide says: the nearest six"
    assert f"cosine is at least {MIN_COSINE:g}".replace("0.", ".") in TEXT
    first, many = Audits(), Audits()
    many._labels["shadow"] = 10**6
    rates = [100 * each.rate(b"", 1.0, AUDIT_RATE) for each in (many, first)]
    assert "from {:.1f} % to {:.1f} % of the first answers of an entry after a label".format(*rates) in TEXT
    assert RECENT_FINGERPRINTS == 5, "the guide says: the last five"
    assert AUDIT_START == 0.75, "the guide says: three quarters"
    assert f"{RECOVERY_LABELS} labels" in TEXT
    assert f"probability of at least {1 - ALPHA:.0%}".replace("%", " %") in TEXT
    assert f"its last {MAX_MATCHES:,} since" in TEXT
    assert f"at most {FIND_SECONDS:g} seconds" in TEXT
    assert f"more than {MAX_SCOPE_WAITING} waiting questions of a tenant, or {MAX_WAITING} of all" in TEXT
    assert f"{MAX_LABELS:,} labels are kept" in TEXT


def test_the_headers_of_an_answer_by_similarity_are_listed() -> None:
    for name, _ in similar_headers(SimilarMatch(b"k", 0.9, 0.01, "id")):
        assert f"| `{name}` |" in GUIDE
