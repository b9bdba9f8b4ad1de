"""Admin tokens: where they come from, and how they change while the proxy runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from knapcache.errors import InvalidInput
from knapcache.proxy.admin.tokens import AdminTokens
from knapcache.proxy.http.asgi_request import RequestRejected
from knapcache.proxy.settings import Settings
from knapcache.proxy.settings.secrets import TOKEN, admin_token, digest_of
from tests.support.clock import Clock

LONG = "a-token-of-these-tests-that-is-long-enough"


def settings_with(folder: Path, **settings: Any) -> Settings:
    return Settings(path=folder, upstreams=[{"url": "http://127.0.0.1:9/v1"}], **settings)


def role(tokens: AdminTokens, token: str) -> str | None:
    found = tokens.find(token)
    return None if found is None else f"{found.name} {found.role}"


def test_tokens_come_from_digests_variables_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", "grafana-" + LONG)
    (tmp_path / "alice").write_text(f"alice-{LONG}\n")
    configured = [
        {"name": "bob", "digest": digest_of("bob-" + LONG)},
        {"name": "grafana", "token_env": "GRAFANA_TOKEN"},
        {"name": "alice", "role": "operator", "token_file": tmp_path / "alice"},
    ]
    tokens = AdminTokens(settings_with(tmp_path, admin_tokens=configured), tmp_path, "unused-" + LONG)
    assert role(tokens, "bob-" + LONG) == "bob read-only"
    assert role(tokens, "grafana-" + LONG) == "grafana read-only"
    assert role(tokens, "alice-" + LONG) == "alice operator"
    assert role(tokens, admin_token(tmp_path)) == "admin operator"
    assert role(tokens, "unused-" + LONG) is role(tokens, "") is None


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ({"name": "a"}, "give one of digest, token_env and token_file"),
        ({"name": "a", "digest": digest_of("x"), "token_file": "/x"}, "give one of digest, token_env and token_file"),
        ({"name": "a", "digest": LONG}, "must be sha256: and 64 hex digits"),
        ({"name": "a", "token_env": "SHORT"}, "the environment variable SHORT must have at least 16 printable"),
        ({"name": "a", "token_env": LONG}, "must be the name, in capitals, of an environment variable"),
        ({"name": "a", "role": "root", "digest": digest_of("x")}, "must be 'read-only' or 'operator'"),
        ({"name": "admin", "digest": digest_of("x")}, "must not be admin"),
    ],
)
def test_wrong_entries_are_rejected_without_their_values(
    monkeypatch: pytest.MonkeyPatch, entry: dict[str, str], problem: str
) -> None:
    monkeypatch.setenv("SHORT", "short")
    with pytest.raises(InvalidInput) as error:
        Settings(admin_tokens=[entry])
    assert problem in str(error.value)
    assert LONG not in str(error.value)


def test_two_tokens_must_differ(tmp_path: Path) -> None:
    configured = [{"name": name, "digest": digest_of(LONG)} for name in ("a", "b")]
    with pytest.raises(InvalidInput, match="admin token 'b': it is the same as 'a'"):
        AdminTokens(settings_with(tmp_path, admin_tokens=configured), tmp_path, LONG)


def test_changed_files_are_read_again_and_missing_ones_are_refused(tmp_path: Path) -> None:
    file, clock = tmp_path / "alice", Clock(0.0)
    file.write_text(f"first-{LONG}")
    configured = [{"name": "alice", "token_file": file}]
    tokens = AdminTokens(settings_with(tmp_path, admin_tokens=configured), tmp_path, LONG, clock)
    identity = tokens.find("first-" + LONG)
    assert identity is not None
    assert tokens.current(identity)
    old = admin_token(tmp_path)

    def wait() -> None:
        clock.now += 1.0
        asyncio.run(tokens.refresh())

    file.write_text(f"second-{LONG}")
    wait()
    assert role(tokens, "second-" + LONG) == "alice read-only"
    assert role(tokens, "first-" + LONG) is None
    assert not tokens.current(identity)
    for damage in (lambda: file.write_text("short"), file.unlink):
        damage()
        wait()
        assert role(tokens, "second-" + LONG) is None
        assert role(tokens, old) == "admin operator", "other tokens stay valid"
    file.write_text(f"third-{LONG}")
    wait()
    assert role(tokens, "third-" + LONG) == "alice read-only"
    (tmp_path / TOKEN).unlink()
    wait()
    assert role(tokens, old) is None
    assert role(tokens, admin_token(tmp_path)) == "admin operator"


def test_files_are_looked_at_once_a_second(tmp_path: Path) -> None:
    clock = Clock(0.0)
    tokens = AdminTokens(settings_with(tmp_path), tmp_path, LONG, clock)
    old = admin_token(tmp_path)
    (tmp_path / TOKEN).write_text(LONG)
    clock.now = 0.9
    asyncio.run(tokens.refresh())
    assert role(tokens, old) == "admin operator"
    clock.now = 1.0
    asyncio.run(tokens.refresh())
    assert (role(tokens, old), role(tokens, LONG)) == (None, "admin operator")


def test_a_rotated_token_is_refused_at_once(tmp_path: Path) -> None:
    tokens = AdminTokens(settings_with(tmp_path), tmp_path, LONG)
    old = admin_token(tmp_path)
    new = tokens.rotate("admin")
    assert (role(tokens, old), role(tokens, new)) == (None, "admin operator")
    assert admin_token(tmp_path) == new
    assert (tmp_path / TOKEN).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [TOKEN], "temporary files are left"


def test_only_a_token_in_a_file_of_its_own_is_rotated(tmp_path: Path) -> None:
    (tmp_path / "target").write_text(f"linked-{LONG}")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    configured = [{"name": "bob", "digest": digest_of(LONG)}, {"name": "linked", "token_file": tmp_path / "link"}]
    tokens = AdminTokens(settings_with(tmp_path, admin_token=LONG[:-1], admin_tokens=configured), tmp_path, LONG)
    for name in ("admin", "bob", "linked", "unknown"):
        with pytest.raises(RequestRejected) as rejected:
            tokens.rotate(name)
        assert (rejected.value.status, rejected.value.kind) == (409, "not_rotatable")
    assert role(tokens, "linked-" + LONG) == "linked read-only"
    assert (tmp_path / "target").read_text() == f"linked-{LONG}"


def test_a_disk_that_fails_changes_no_token(tmp_path: Path) -> None:
    folder, clock = tmp_path / "data", Clock(0.0)
    folder.mkdir()
    tokens = AdminTokens(settings_with(folder), folder, LONG, clock)
    old = admin_token(folder)
    folder.rename(tmp_path / "gone")
    with pytest.raises(RequestRejected) as rejected:
        tokens.rotate("admin")
    assert (rejected.value.status, rejected.value.kind) == (503, "write_failed")
    assert role(tokens, old) == "admin operator"
    with tokens._lock:  # an earlier look at the files still waits for the disk
        clock.now = 2.0
        asyncio.run(tokens.refresh())
        assert role(tokens, old) == "admin operator"


def test_other_settings_replace_the_tokens_or_change_nothing(tmp_path: Path) -> None:
    tokens = AdminTokens(settings_with(tmp_path, admin_token="one-" + LONG), tmp_path, LONG)
    tokens.apply(settings_with(tmp_path, admin_token="two-" + LONG))
    assert (role(tokens, "one-" + LONG), role(tokens, "two-" + LONG)) == (None, "admin operator")
    missing = settings_with(tmp_path, admin_tokens=[{"name": "alice", "token_file": tmp_path / "missing"}])
    with pytest.raises(InvalidInput, match="admin token 'alice'"):
        tokens.apply(missing)
    assert role(tokens, "two-" + LONG) == "admin operator"
