"""Counters of calls to upstreams, which all processes of a store share. Not in the capacity: at most some KB a scope.

    O:u:d:DAY:SCOPE     string   dollars paid on a day         O:u:r:SLOT:SCOPE   string   calls begun in a slot
    O:u:m:MONTH:SCOPE   string   dollars paid in a month       O:u:t:SLOT:SCOPE   string   tokens used in a slot
    O:u:f:SCOPE         hash     process → its calls in flight, dollars and tokens reserved for them, and when it was
                                 last seen, by the server's clock

All have a life time in the server. COUNT_CALLS makes the decisions of `features/limits/core.py` in the server, and a
test compares the two. Days, months and slots are numbers that the caller gives, and the names of scopes, too: the
caller hashes names that must not be readable there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from knapcache.errors import StoreError
from knapcache.store.redis.layout import owner_tag
from knapcache.store.redis.membership import Membership

NUMBERS_BEFORE_SLOTS = 5
"""Numbers of a scope before its slots: dollars of the day and of the month, and three of its calls in flight."""
MAX_OPERATIONS = 50
"""Operations of one script. The server runs no other command meanwhile."""


class CallCounts:
    """The counters of a store. Every method may raise StoreError: the server does not answer, or refuses."""

    def __init__(self, member: Membership) -> None:
        self._member = member
        self._prefix = owner_tag(member.address.prefix) + b":u:"

    def apply(
        self,
        process: str,
        slots: tuple[int, int, int],
        minute: tuple[int, int],
        stale: float,
        operations: Sequence[tuple[int, Sequence[Any]]],
    ) -> list[tuple[int, int, list[list[float]]]]:
        """Apply operations. Return for each the scope and the limit that refused it, from 1 on, and what was counted.

        slots        numbers of the day, the month and the slot
        minute       slots of a minute, and later ones that count as the present one
        stale        seconds after which a process that was not seen is dead
        operations   number of scopes, and the arguments of COUNT_CALLS
        """
        results: list[tuple[int, int, list[list[float]]]] = []
        for begin in range(0, len(operations), MAX_OPERATIONS):
            batch = operations[begin : begin + MAX_OPERATIONS]
            arguments = [part for _, parts in batch for part in parts]
            keys, head = [self._prefix + b"f"], [self._prefix, process, *slots, *minute, stale]
            found = self._member.attached_server().run(COUNT_CALLS, keys, *head, *arguments)
            if not isinstance(found, list) or len(found) != len(batch):
                raise StoreError("the server returned counters of another number of operations")
            results += [self._read(row, scopes, minute[0]) for row, (scopes, _) in zip(found, batch, strict=True)]
        return results

    def set_in_flight(self, process: str, rows: Sequence[tuple[str, int, float, float]]) -> None:
        """Set calls, dollars and tokens in flight of a process, by scope."""
        if rows:
            arguments = [part for row in rows for part in row]
            self._member.attached_server().run(
                COUNT_IN_FLIGHT, [self._prefix + b"f"], self._prefix, process, *arguments
            )

    def _read(self, row: bytes, scopes: int, minute: int) -> tuple[int, int, list[list[float]]]:
        length = NUMBERS_BEFORE_SLOTS + 2 * minute
        try:
            refused, limit, *values = map(float, row.split())
        except (AttributeError, TypeError, ValueError):  # another program may send anything
            raise StoreError("the server returned counters of another form") from None
        if len(values) != scopes * length or not (0 <= refused <= scopes and 0 <= limit <= 5):
            raise StoreError("the server returned counters of another form")
        return int(refused), int(limit), [values[k * length : (k + 1) * length] for k in range(scopes)]


COUNT_CALLS = """
-- KEYS: one of the counters. ARGV: prefix of their names, process, day, month, slot, slots of a minute, later ones
-- that count as the present one, seconds until a process is dead, then operations: kind (reserve, charge, read), number
-- of scopes, for each its name and five limits or '', then calls, dollars and tokens to reserve or to release, dollars
-- and tokens paid.
local prefix, process, slot, minute, ahead = ARGV[1], ARGV[2], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local clock = redis.call('TIME')
local now, number = tonumber(clock[1]), function(value) return string.format('%.17g', value) end
local lives = {d = 3 * 86400, m = 70 * 86400, r = 120, t = 120}
local function add(scope, kind, at, amount)
  if amount == 0 then return end
  local name = prefix .. kind .. ':' .. at .. ':' .. scope
  redis.call('INCRBYFLOAT', name, number(amount))
  redis.call('EXPIRE', name, lives[kind])
end
local function add_paid(scope, usd, tokens)
  add(scope, 'd', ARGV[3], usd)
  add(scope, 'm', ARGV[4], usd)
  add(scope, 't', slot, tokens)
end
local function row(text)
  local calls, usd, tokens, beat = string.match(text, '^(%S+) (%S+) (%S+) (%S+)$')
  return {tonumber(calls) or 0, tonumber(usd) or 0, tonumber(tokens) or 0, tonumber(beat) or 0}
end
local function put(scope, own)
  local name = prefix .. 'f:' .. scope
  if own[1] <= 0 then redis.call('HDEL', name, process) return end
  for k = 1, 3 do own[k] = number(math.max(0, own[k])) end
  redis.call('HSET', name, process, own[1] .. ' ' .. own[2] .. ' ' .. own[3] .. ' ' .. now)
  redis.call('EXPIRE', name, 86400)
end
local function usage(scope)
  local names = {prefix .. 'd:' .. ARGV[3] .. ':' .. scope, prefix .. 'm:' .. ARGV[4] .. ':' .. scope}
  for _, kind in ipairs({'r:', 't:'}) do
    for k = slot - minute + 1, slot + ahead do names[#names + 1] = prefix .. kind .. k .. ':' .. scope end
  end
  local found, own, sums = {}, {0, 0, 0}, {0, 0, 0}
  local rows = redis.call('HGETALL', prefix .. 'f:' .. scope)
  for k = 1, #rows, 2 do
    local each = row(rows[k + 1])
    if now - each[4] > tonumber(ARGV[8]) then
      redis.call('HDEL', prefix .. 'f:' .. scope, rows[k])
      add_paid(scope, each[2], each[3])
    else
      for i = 1, 3 do sums[i] = sums[i] + each[i] end
      if rows[k] == process then own = each end
    end
  end
  local values = redis.call('MGET', unpack(names))
  for k = 1, 2 do found[k] = tonumber(values[k] or 0) or 0 end
  for i = 1, 3 do found[2 + i] = sums[i] end
  for k = 3, #values do
    local kind = k - 3 < minute + ahead and 0 or 1
    local place = 6 + kind * minute + math.min((k - 3) % (minute + ahead), minute - 1)
    found[place] = (found[place] or 0) + (tonumber(values[k] or 0) or 0)
  end
  return found, own
end
local function total(found, from)
  local sum = 0
  for k = from, from + minute - 1 do sum = sum + found[k] end
  return sum
end
local function refused(found, at)
  local counts = {found[1] + found[4], found[2] + found[4], total(found, 6), total(found, 6 + minute) + found[5],
    found[3]}
  for k = 1, 5 do
    local limit = tonumber(ARGV[at + k])
    if limit and counts[k] >= limit then return k end
  end
end
local results, at = {}, 9
while at <= #ARGV do
  local kind, scopes = ARGV[at], {}
  local result = {'0', '0'}
  for k = 1, tonumber(ARGV[at + 1]) do
    local place = at + 2 + (k - 1) * 6
    local found, own = usage(ARGV[place])
    scopes[k] = {name = ARGV[place], own = own}
    for _, value in ipairs(found) do result[#result + 1] = number(value) end
    local limit = kind == 'reserve' and result[1] == '0' and refused(found, place)
    if limit then result[1], result[2] = tostring(k), tostring(limit) end
  end
  at = at + 2 + #scopes * 6
  local amounts = {}
  for k = 1, 5 do amounts[k] = tonumber(ARGV[at + k - 1]) end
  at = at + 5
  for _, scope in ipairs(scopes) do
    local sign = kind == 'charge' and -1 or 1
    if kind == 'charge' then add_paid(scope.name, amounts[4], amounts[5]) end
    if kind == 'reserve' and result[1] == '0' then add(scope.name, 'r', slot, amounts[1]) end
    if kind == 'charge' or (kind == 'reserve' and result[1] == '0') then
      for i = 1, 3 do scope.own[i] = scope.own[i] + sign * amounts[i] end
      put(scope.name, scope.own)
    end
  end
  results[#results + 1] = table.concat(result, ' ')
end
return results
"""

COUNT_IN_FLIGHT = """
-- KEYS: one of the counters. ARGV: prefix of their names, process, then scope, calls, dollars and tokens. Set the calls
-- in flight of a process.
local now = redis.call('TIME')[1]
for k = 3, #ARGV, 4 do
  local name = ARGV[1] .. 'f:' .. ARGV[k]
  if tonumber(ARGV[k + 1]) <= 0 then
    redis.call('HDEL', name, ARGV[2])
  else
    redis.call('HSET', name, ARGV[2], ARGV[k + 1] .. ' ' .. ARGV[k + 2] .. ' ' .. ARGV[k + 3] .. ' ' .. now)
    redis.call('EXPIRE', name, 86400)
  end
end
return 1
"""
