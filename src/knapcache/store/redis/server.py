"""Commands to a Valkey or Redis server: through breakers, and with errors as StoreError."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from knapcache.errors import NotOwner, StoreError
from knapcache.store.redis import scripts
from knapcache.store.redis.connect import connect, require_redis
from knapcache.store.redis.server_state import NodeBreakers
from knapcache.store.redis.urls import Address

WHOLE_SERVER = ""
"""Name of the node while no other is known."""
WRITE_TIMEOUTS = 8
"""How many times as long as a request the writing thread waits: no request waits for it."""


class ServerAway(StoreError):  # noqa: N818 - states, as in errors.py
    """The server did not answer. `sent`: whether the command may have taken effect."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class Fenced(NotOwner):
    """Another process has become the owner. `epoch`: that of the shard, if the server gave one."""

    epoch = 0


class SlotMoving(ServerAway):
    """The slot of the keys is moving to another node, and some of them are there already. The command had no effect."""


class WritesRefused(StoreError):  # noqa: N818
    """The server answers and refuses writes. The command had no effect."""


class ShardClosed(StoreError):  # noqa: N818
    """The server has lost a shard's totals, as after FLUSHALL."""


def as_number(value: Any) -> int:
    """Return a number of a reply; 0 for none. StoreError if it is not a number: another program has written it."""
    try:
        return int(value or 0)
    except (TypeError, ValueError, OverflowError):
        raise StoreError("the server has something else than a number of the store") from None


class RedisServer:
    """A client with one timeout. Threads share it.

    refreshes   a command that fails in a cluster asks all nodes for the topology before it returns. False: only
                `probe_nodes` does, so that no request waits for that
    """

    def __init__(self, address: Address, timeout: float, breakers: NodeBreakers, *, refreshes: bool = True) -> None:
        self._redis = require_redis()
        self._refreshes = refreshes
        self._address, self._timeout, self.breakers = address, timeout, breakers
        self._lock = threading.Lock()
        self._client: Any = None
        errors = self._redis.exceptions
        self._away = (
            errors.ConnectionError, errors.TimeoutError, errors.ClusterDownError, errors.BusyLoadingError,
            errors.ReadOnlyError, errors.TryAgainError, errors.MasterDownError, errors.RedisClusterException, OSError,
        )  # fmt: skip
        self.failures = 0
        """Commands that had no answer. The owner reads the totals again when it changes."""

    @property
    def is_cluster(self) -> bool:
        """Whether keys of different shards may be at different nodes."""
        return self._address.kind == "cluster"

    def client(self) -> Any:
        """Return the client; ServerAway when a cluster cannot be reached."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._connected()
        return self._client

    def _connected(self) -> Any:
        if not self.breakers.allows(WHOLE_SERVER):
            raise ServerAway("the server did not answer recently", sent=False)
        try:
            return connect(self._address, self._timeout, refreshes=self._refreshes)
        except self._redis.exceptions.AuthenticationError as error:
            raise StoreError(f"the server refused the user or the password: {error}") from None
        except self._away as error:
            self.failures += 1
            self.breakers.open(WHOLE_SERVER, b"", str(error))
            raise ServerAway(f"the server cannot be reached: {error}", sent=False) from None

    def node(self, key: bytes) -> str:
        """Return the name of the node that has a key."""
        if self._address.kind != "cluster" or self._client is None:
            return WHOLE_SERVER
        try:
            name: str = self._client.get_node_from_key(key).name
        except (AttributeError, self._redis.exceptions.RedisError):  # no node has the slot now
            return WHOLE_SERVER
        return name

    def allows(self, key: bytes) -> bool:
        """Return whether a command for a key would be sent."""
        return self.breakers.allows(self.node(key))

    def command(self, key: bytes, *arguments: Any, probe: bool = False, **options: Any) -> Any:
        """Send a command for a key and return its reply. A probe is sent through an open breaker."""
        node = self.node(key)
        if not (probe or self.breakers.allows(node)):
            raise ServerAway("the server did not answer recently", sent=False)
        client = self.client()
        errors = self._redis.exceptions
        try:
            return check_reply(arguments, client.execute_command(*arguments, **options))
        except StoreError:
            raise
        except errors.AuthenticationError as error:  # before ConnectionError, which it is
            raise StoreError(f"the server refused the user or the password: {error}") from None
        except self._away as error:
            self.failures += 1
            self.breakers.open(self.node(key) if node == WHOLE_SERVER else node, key, str(error))
            raise ServerAway(f"the server does not answer: {error}", sent=True) from None
        except errors.NoScriptError:
            raise
        except errors.ClusterError as error:  # redirected too often
            raise SlotMoving(f"the keys are moving to another node: {error}", sent=False) from None
        except errors.OutOfMemoryError:
            raise self._writes_refused(node, key, "it is out of memory (maxmemory)") from None
        except errors.RedisError as error:
            text = str(error)
            if text.startswith("FENCED"):
                fenced, epoch = Fenced("another process has become the owner of the store"), text[7:25].split(" ")[0]
                fenced.epoch = int(epoch) if epoch.isdecimal() else 0
                raise fenced from None
            if text.startswith("CLOSED"):
                self.failures += 1
                raise ShardClosed(text) from None
            if text.startswith(("MISCONF", "NOREPLICAS")):  # it cannot save, or has too few replicas
                raise self._writes_refused(node, key, text.split(".")[0]) from None
            # Some servers quote the arguments of a command, which hold requests and answers.
            raise StoreError(f"the server refused a command: {text.partition(', with args')[0]}") from None
        except Exception as error:  # noqa: BLE001,RUF100 - the client parses whatever the server sends
            raise StoreError(f"the server sent a reply that cannot be read: {type(error).__name__}") from None

    def _writes_refused(self, node: str, key: bytes, reason: str) -> WritesRefused:
        self.breakers.refuse_writes(node, key, reason)
        return WritesRefused(f"the server takes no writes: {reason}")

    def run(self, script: str, keys: list[bytes], *arguments: Any, probe: bool = False) -> Any:
        """Run a script. The server has it after the first time."""
        try:
            return self.command(keys[0], "EVALSHA", scripts.sha1_of(script), len(keys), *keys, *arguments, probe=probe)
        except self._redis.exceptions.NoScriptError:
            return self.command(keys[0], "EVAL", script, len(keys), *keys, *arguments, probe=probe)

    def wait_for_replica(self, key: bytes, milliseconds: int) -> int:
        """Wait until a replica has the last write of this client's connection. Return the replicas that have it."""
        options = {"target_nodes": self.client().get_node_from_key(key)} if self._address.kind == "cluster" else {}
        found = self.command(key, "WAIT", 1, milliseconds, **options)
        return int(next(iter(found.values())) if isinstance(found, dict) else found)

    def each_primary(self, *arguments: Any) -> dict[str, Any]:
        """Send a command to every primary. Return the replies by node; ServerAway if no primary answers."""
        if self._address.kind != "cluster":
            return {WHOLE_SERVER: self.command(b"", *arguments)}
        client, replies = self.client(), {}
        for node in client.get_primaries():
            try:
                replies[node.name] = check_reply(arguments, client.execute_command(*arguments, target_nodes=node))
            except self._away:  # its breaker opens with the first command for one of its keys
                self.failures += 1
            except Exception as error:  # noqa: BLE001,RUF100 - as in `command`
                raise StoreError(f"the server sent a reply that cannot be read: {type(error).__name__}") from None
        if not replies:
            raise ServerAway("no primary of the cluster answers", sent=True)
        return replies

    def probe_nodes(self, before_use: Callable[[], None]) -> None:
        """Try the nodes whose breakers are open, and ask a cluster for its topology if one does not answer."""
        found = [self._probe(node, key, before_use) for node, key in self.breakers.probes.items()]
        if not all(found):
            self._refresh()

    def _probe(self, node: str, key: bytes, before_use: Callable[[], None]) -> bool:
        """Send a command to a node whose breaker is open, and close the breaker if it answers.

        before_use: called before that. While it raises StoreError, the breaker stays open.
        """
        if self._client is None:  # a cluster that was never reached
            self.breakers.close(node)
            try:
                self.client()
            except StoreError:
                return False
            return True
        try:
            self.command(key or b"-", "EXISTS", key or b"-", probe=True)
        except StoreError as error:
            if isinstance(error, ServerAway):
                return False
        before_use()
        self.breakers.close(node)
        return True

    def probe_writes(self) -> None:
        """Write to the nodes that refused writes, and note those that take them again."""
        for node, key in self.breakers.read_only.items():
            probe = key[: key.find(b"}") + 1] + b":w"
            with contextlib.suppress(WritesRefused):
                self.command(probe, "SET", probe, b"", "PX", 1000)
                self.breakers.accept_writes(node)

    def _refresh(self) -> None:
        """Ask the nodes of a cluster for its topology: other nodes may have the slots of those that are away."""
        if self.is_cluster and self._client is not None and not self._refreshes:
            with contextlib.suppress(*self._away):
                self._client.refresh()

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except self._away:
                return


# The form of replies: another program at the address may send anything else.


def _text(reply: Any) -> bool:
    return reply is None or isinstance(reply, bytes)


def _texts(reply: Any) -> bool:
    return isinstance(reply, list) and all(map(_text, reply))


def _present(reply: Any) -> bool:
    return isinstance(reply, list) and all(isinstance(each, bytes) for each in reply)


def _table(reply: Any) -> bool:
    return isinstance(reply, dict) and all(isinstance(each, bytes) for pair in reply.items() for each in pair)


def _scan(reply: Any) -> bool:
    return isinstance(reply, tuple) and len(reply) == 2 and str(reply[0]).strip("b'").isdecimal() and _table(reply[1])


def _scores(reply: Any) -> bool:
    return isinstance(reply, list) and all(
        isinstance(row, tuple) and isinstance(row[0], bytes) and isinstance(row[1], float) for row in reply
    )


def _records(reply: Any) -> bool:
    return isinstance(reply, list) and all(isinstance(row[0], bytes) and _table(row[1]) for row in reply)


def _shard_totals(reply: Any) -> bool:
    return isinstance(reply, list) and len(reply) >= 4 and all(isinstance(each, int) for each in reply[:4])


_OF_COMMANDS: dict[str, Callable[[Any], bool]] = {
    "GET": _text, "HGET": _text, "GETRANGE": _text, "MGET": _texts, "HMGET": _texts, "HVALS": _present,
    "ZRANGEBYSCORE": _present, "HGETALL": _table, "HSCAN": _scan, "ZREVRANGE": _scores, "XRANGE": _records,
    "INFO": lambda reply: isinstance(reply, dict), "EXISTS": lambda reply: isinstance(reply, int),
    "XLEN": lambda reply: isinstance(reply, int), "WAIT": lambda reply: isinstance(reply, (int, dict)),
}  # fmt: skip
_OF_SCRIPTS: dict[str, Callable[[Any], bool]] = {
    scripts.sha1_of(script): accepts
    for script, accepts in (
        (scripts.OPEN, _shard_totals),
        (scripts.DECIDE, lambda reply: _shard_totals(reply) and len(reply) == 5 and isinstance(reply[4], bytes)),
        (scripts.PARK, lambda reply: isinstance(reply, bytes)),
        (scripts.TAKE, _present),
        (scripts.TAKE_COUNTS, _present),
        (scripts.TAKE_OWNER_REQUESTS, _present),
        (scripts.DESCRIBE, lambda reply: _texts(reply) and len(reply) == 5),
        (scripts.ACQUIRE, _text),
        (scripts.LEAD, lambda reply: isinstance(reply, bytes) or reply in (0, 1)),
    )
}
_EXPECTED_LENGTHS = {"MGET": 1, "HMGET": 2}
"""Arguments that are not names of values, of commands that return one value for each name."""


def check_reply(arguments: Sequence[Any], reply: Any) -> Any:
    """Return the reply of a command; StoreError if it has another form than that of the command."""
    name = arguments[0]
    accepts = _OF_SCRIPTS.get(arguments[1]) if name == "EVALSHA" else _OF_COMMANDS.get(name)
    if accepts is not None and not accepts(reply):
        raise StoreError("the server sent a reply of another form")
    if name in _EXPECTED_LENGTHS and len(reply) != len(arguments) - _EXPECTED_LENGTHS[name]:
        raise StoreError("the server sent a reply of another length")
    return reply
