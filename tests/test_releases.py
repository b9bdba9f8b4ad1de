"""Files of earlier releases can be read. tests/support/release_files.py writes them to tests/releases."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from knapcache import Cache
from knapcache.proxy.settings.loading import load
from tests.support.release_files import FOLDER, SECRET, requests

RELEASES = sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.parametrize("release", RELEASES)
def test_the_cache_file_of_a_release_has_its_answers(release: str, tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    path.write_bytes(gzip.decompress((FOLDER / release / "cache.sqlite.gz").read_bytes()))
    path.chmod(0o600)
    with Cache(path=path, secret=SECRET, policy="lru", shadows=()) as cache:
        for endpoint, request, reply in requests():
            found = cache.get(endpoint, request)
            assert found is not None, endpoint
            assert (found.outcome, found.payload) == ("hit", reply.payload)
        assert cache.purge(tags="faq") == 1
        cache.check()


@pytest.mark.features
@pytest.mark.parametrize("release", RELEASES)
def test_the_settings_file_of_a_release_is_accepted(release: str) -> None:
    settings = load(FOLDER / release / "knapcache.toml", secrets=False).settings
    assert (settings.port, settings.capacity, settings.ttl) == (9000, 10**9, 12 * 3600)
