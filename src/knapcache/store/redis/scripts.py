"""The scripts that run in the server. Each changes the keys of one hash tag, atomically.

layout.py names the keys. Scripts of the owner carry its epoch: a server that has seen a later one answers FENCED.
Scripts of a shard take T as an argument, and as keys the totals T:b and whatever else they are sure to use: while a
slot moves to another node of a cluster, the server then refuses the whole script, not its second half. A script removes
a value before its head, and stores it before its head. So an interrupted script leaves a head that has no value, or a
total that is wrong; OPEN counts again after an error. What scripts remove, they publish.
"""

from __future__ import annotations

import functools
import hashlib

from knapcache.store.redis.records import SIZE_OFFSET

MAX_LEASE_SECONDS = 10
"""No lease of ours lasts longer without being renewed."""
MAX_AHEAD_SECONDS = 86_400
"""How far an epoch may be ahead of the server's clock, which may have been set back."""

_EPOCH = f"""
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
-- An epoch is about the server's time in microseconds. One that is further ahead was forged, and counts as none.
local function epoch_of(value)
  local epoch = tonumber(value or 0) or 0
  if epoch <= now + {MAX_AHEAD_SECONDS * 1_000_000} then return epoch end
  return 0
end
local function text_of(key)
  if redis.call('TYPE', key).ok == 'string' then return redis.call('GET', key) end
end
"""

_HOLDER = f"""
-- Return the token of a lease, or nothing. A key that lasts longer than a lease is none: another program wrote it.
local function holder(key, life)
  if redis.call('TYPE', key).ok ~= 'string' then return nil end
  local left = redis.call('PTTL', key)
  if left < 0 or left > math.max(tonumber(life), {MAX_LEASE_SECONDS * 1000}) then return nil end
  return redis.call('GET', key)
end
"""

_TOTALS = f"""{_EPOCH}
local T, channel, B = ARGV[1], ARGV[2], KEYS[1]
local x = redis.call('HMGET', B, 'used', 'count', 'nused', 'limit', 'nroom', 'epoch')
local used, count, nused = tonumber(x[1] or 0), tonumber(x[2] or 0), tonumber(x[3] or 0)
local limit, nroom, epoch = tonumber(x[4] or -1), tonumber(x[5] or -1), epoch_of(x[6])
local gone = {{}}
local function size_of(head) return struct.unpack('<I8', head, {SIZE_OFFSET + 1}) end
local function remove_parked(name)
  local size = redis.call('HGET', T .. ':s', name)
  if size then
    redis.call('UNLINK', T .. ':u:' .. name)
    redis.call('HDEL', T .. ':s', name)
    nused = nused - tonumber(size)
    redis.call('LREM', T .. ':n', 1, name)
    redis.call('LREM', T .. ':t', 1, name)
    gone[#gone + 1] = name
  end
end
local function remove_admitted(name)
  local head = redis.call('HGET', T .. ':h', name)
  if head then
    redis.call('UNLINK', T .. ':a:' .. name)
    redis.call('ZREM', T .. ':x', name)
    redis.call('HDEL', T .. ':h', name)
    used, count = used - size_of(head), count - 1
    gone[#gone + 1] = name
  end
end
local function finish()
  redis.call('HSET', B, 'used', used, 'count', count, 'nused', nused, 'epoch', epoch)
  if limit >= 0 then redis.call('HSET', B, 'limit', limit) end
  if nroom >= 0 then redis.call('HSET', B, 'nroom', nroom) end
  if #gone > 0 then redis.call('PUBLISH', channel, table.concat(gone)) end
end
"""

_FENCE = """
if tonumber(ARGV[3]) < epoch then return redis.error_reply('FENCED ' .. string.format('%.0f', epoch)) end
epoch = tonumber(ARGV[3])
"""

OPEN = (
    _TOTALS
    + _FENCE
    + """
-- ARGV: T, channel, epoch, nroom, 1 to count again. Claim a shard for this epoch; drop what a former owner collected
-- and did not decide.
nroom = tonumber(ARGV[4])
if ARGV[5] == '1' then
  used, count, nused = 0, 0, 0
  for _, head in ipairs(redis.call('HVALS', T .. ':h')) do used, count = used + size_of(head), count + 1 end
  for _, size in ipairs(redis.call('HVALS', T .. ':s')) do nused = nused + tonumber(size) end
end
for _, name in ipairs(redis.call('LRANGE', T .. ':t', 0, -1)) do remove_parked(name) end
finish()
return {used, count, nused, limit}
"""
)

DECIDE = (
    _TOTALS
    + _FENCE
    + """
-- ARGV: T, channel, epoch, limit or '', number of names to remove, names, number of parked names to drop, names,
-- then for a put: name, size, expiry time or '', milliseconds to live or '', head, value or '' to admit the parked one.
if limit < 0 and ARGV[4] == '' then return redis.error_reply('CLOSED the shard was not opened') end
if ARGV[4] ~= '' then limit = tonumber(ARGV[4]) end
local at = 5
for _ = 1, tonumber(ARGV[at]) do at = at + 1 remove_admitted(ARGV[at]) remove_parked(ARGV[at]) end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do at = at + 1 remove_parked(ARGV[at]) end
local status = 'ok'
if #ARGV > at then
  local name, size, expires, life = ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  local head, value = ARGV[at + 5], ARGV[at + 6]
  local parked, admitted = T .. ':u:' .. name, T .. ':a:' .. name
  remove_admitted(name)
  if used + size > limit then
    status = 'full'
    remove_parked(name)
  elseif value == '' and redis.call('GETRANGE', parked, 0, #head - 1) ~= head then
    status = 'missing'
  else
    if value == '' then
      redis.call('RENAME', parked, admitted)
      nused = nused - tonumber(redis.call('HGET', T .. ':s', name) or 0)
      redis.call('HDEL', T .. ':s', name)
      redis.call('LREM', T .. ':n', 1, name)
      redis.call('LREM', T .. ':t', 1, name)
    else
      remove_parked(name)
      if life == '' then redis.call('SET', admitted, value) else redis.call('SET', admitted, value, 'PX', life) end
    end
    redis.call('HSET', T .. ':h', name, head)
    if expires ~= '' then redis.call('ZADD', T .. ':x', expires, name) end
    used, count = used + size, count + 1
  end
end
finish()
return {used, count, nused, limit, status}
"""
)

PARK = (
    _TOTALS
    + """
-- ARGV: T, channel, name, size, milliseconds to live or '', value, n or t (layout.py), channel of arrivals, shard,
-- 1 to displace. Put an entry into the nursery; the oldest give way, without 1 only those that the owner has collected.
local name, size, life = ARGV[3], tonumber(ARGV[4]), ARGV[5]
if nroom < 0 then return 'closed' end
if size > nroom then return 'full' end
remove_parked(name)
while nused + size > nroom do
  local oldest = redis.call('LINDEX', T .. ':t', 0) or ARGV[10] == '1' and redis.call('LINDEX', T .. ':n', 0)
  if not oldest then break end
  remove_parked(oldest)
end
if nused + size > nroom and ARGV[10] ~= '1' then finish() return 'busy' end
local T_u = T .. ':u:' .. name
if life == '' then redis.call('SET', T_u, ARGV[6]) else redis.call('SET', T_u, ARGV[6], 'PX', life) end
redis.call('HSET', T .. ':s', name, size)
local waiting = redis.call('RPUSH', T .. ':' .. ARGV[7], name)
nused = nused + size
finish()
if ARGV[7] == 'n' and waiting == 1 then redis.call('PUBLISH', ARGV[8], ARGV[9]) end
return 'ok'
"""
)

TAKE = (
    _TOTALS
    + _FENCE
    + """
-- ARGV: T, channel, epoch, most bytes. Return values that were parked and not yet collected, each once.
local found, bytes = {}, 0
while bytes < tonumber(ARGV[4]) do
  local name = redis.call('LINDEX', T .. ':n', 0)
  if not name then break end
  local value = redis.call('GET', T .. ':u:' .. name)
  if value then
    redis.call('LPOP', T .. ':n')
    redis.call('RPUSH', T .. ':t', name)
    found[#found + 1] = value
    bytes = bytes + #value
  else
    remove_parked(name)
    redis.call('LREM', T .. ':n', 1, name)
  end
end
finish()
return found
"""
)

DESCRIBE = """
-- KEYS: meta. ARGV: format, shards, mark of the secret, encrypted, time at which the store was created or ''. Store the
-- description if there is none, or if the one that is there is of another store that is younger. Return it.
local names = {'format', 'shards', 'secret', 'encrypted', 'since'}
local found, since, clock = redis.call('HMGET', KEYS[1], unpack(names)), tonumber(ARGV[5]), redis.call('TIME')
local other = found[2] ~= ARGV[2] or found[3] ~= ARGV[3] or found[4] ~= ARGV[4]
local now = clock[1] .. string.format('%06d', clock[2])
if not found[1] or (since and other and since < (tonumber(found[5]) or math.huge)) then
  redis.call('DEL', KEYS[1])
  for k = 1, 5 do redis.call('HSET', KEYS[1], names[k], ARGV[k] ~= '' and ARGV[k] or now) end
elseif not found[5] then
  redis.call('HSET', KEYS[1], 'since', now)
end
return redis.call('HMGET', KEYS[1], unpack(names))
"""

ACQUIRE = f"""{_EPOCH}{_HOLDER}
-- KEYS: owner, epoch. ARGV: token, lease in milliseconds, epoch that it must exceed. Return the epoch of the new owner,
-- or nothing.
local owner = holder(KEYS[1], ARGV[2])
if owner and owner ~= ARGV[1] then return false end
local epoch = math.max(epoch_of(text_of(KEYS[2])) + 1, epoch_of(ARGV[3]) + 1, now)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
return string.format('%.0f', epoch)
"""

RENEW = f"""{_EPOCH}{_HOLDER}
-- KEYS: owner, epoch. ARGV: token, lease in milliseconds, epoch. Return 1 if this owner goes on, else 0.
-- A lease that ran out is renewed if no other process has acquired one since. A server that is out of memory refuses
-- SET and not PEXPIRE, so an owner stays the owner then.
local owner, epoch = holder(KEYS[1], ARGV[2]), epoch_of(text_of(KEYS[2]))
if epoch > tonumber(ARGV[3]) or (owner and owner ~= ARGV[1]) then return 0 end
if owner then redis.call('PEXPIRE', KEYS[1], ARGV[2]) else redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
if epoch ~= tonumber(ARGV[3]) then redis.call('SET', KEYS[2], ARGV[3]) end
return 1
"""

RELEASE = f"""{_EPOCH}
-- KEYS: owner. ARGV: token.
if text_of(KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

LEAD = f"""{_HOLDER}
-- KEYS: lease, keys of values. ARGV: token, life in milliseconds. Return the first value, 1 for the lease, or 0.
-- A byte after the token of the holder says that another process waits.
for i = 2, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value then return value end
end
if not holder(KEYS[1], ARGV[2]) and redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) then return 1 end
if redis.call('STRLEN', KEYS[1]) == #ARGV[1] then redis.call('APPEND', KEYS[1], 'w') end
return 0
"""

RENEW_KEY = """
-- KEYS: lease. ARGV: token, life in milliseconds.
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0
"""

END_LEASE = """
-- KEYS: lease, value of the admitted entry. ARGV: token, 1 if the holder has an answer. Remove the lease, unless other
-- processes wait for an answer that is not stored: then return 1.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '1' and #held > #ARGV[1] and redis.call('EXISTS', KEYS[2]) == 0 then return 1 end
redis.call('DEL', KEYS[1])
return 0
"""

_OWNER_FENCE = f"""{_EPOCH}
if tonumber(ARGV[1]) < epoch_of(text_of(KEYS[2])) then
  return redis.error_reply('FENCED another owner has taken over')
end
"""

SAVE_SNAPSHOT = (
    _OWNER_FENCE
    + """
-- KEYS: snap, epoch, the new chunks. ARGV: epoch, generation, seal. Use the new chunks, and remove the old ones.
for i = 3, #KEYS do
  if redis.call('PERSIST', KEYS[i]) == 0 then return redis.error_reply('CHUNK a chunk of the snapshot is missing') end
end
local old = redis.call('HMGET', KEYS[1], 'generation', 'chunks')
for i = 0, tonumber(old[2] or 0) - 1 do redis.call('UNLINK', KEYS[1] .. '.' .. old[1] .. '.' .. i) end
redis.call('HSET', KEYS[1], 'generation', ARGV[2], 'chunks', #KEYS - 2, 'seal', ARGV[3])
return 1
"""
)

PUT_COUNTS = """
-- KEYS: counts, their bytes. ARGV: record, most bytes.
local bytes = tonumber(redis.call('GET', KEYS[2]) or 0) + #ARGV[1] + 64
if bytes > tonumber(ARGV[2]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], bytes)
return 1
"""

TAKE_COUNTS = (
    _OWNER_FENCE
    + """
-- KEYS: counts, epoch, their bytes. ARGV: epoch.
local found = redis.call('LRANGE', KEYS[1], 0, -1)
redis.call('DEL', KEYS[1], KEYS[3])
return found
"""
)

ASK = """
-- KEYS: requests to the owner. ARGV: record, most records, milliseconds to live, channel of arrivals.
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', ARGV[4], 'q')
return 1
"""

TAKE_OWNER_REQUESTS = (
    _OWNER_FENCE
    + """
-- KEYS: requests to the owner, epoch. ARGV: epoch.
local found = redis.call('LRANGE', KEYS[1], 0, -1)
redis.call('DEL', KEYS[1])
return found
"""
)

APPEND = """
-- KEYS: stream, ids by name, epoch, places by scope, numbers by scope. ARGV: new epoch, most records; then name, record
-- and scope of each. A name "" is that of no record, a record "" only removes the one with its name.
redis.call('SET', KEYS[3], ARGV[1], 'NX')
local function place(scope, id)
  local time, number = string.match(id, '^(%d+)-(%d+)$')
  return string.format('%s:%016.0f-%016.0f:%s', scope, tonumber(time), tonumber(number), id)
end
local function uncount(scope)
  if redis.call('HINCRBY', KEYS[5], scope, -1) <= 0 then redis.call('HDEL', KEYS[5], scope) end
end
local function remove(id, fields)
  local name, scope
  for k = 1, #fields, 2 do
    if fields[k] == 'n' then name = fields[k + 1] elseif fields[k] == 's' then scope = fields[k + 1] end
  end
  redis.call('XDEL', KEYS[1], id)
  if name and redis.call('HGET', KEYS[2], name) == id then redis.call('HDEL', KEYS[2], name) end
  if scope and redis.call('ZREM', KEYS[4], place(scope, id)) == 1 then uncount(scope) end
end
for k = 3, #ARGV, 3 do
  local name, record, scope = ARGV[k], ARGV[k + 1], ARGV[k + 2]
  local known = name ~= '' and redis.call('HGET', KEYS[2], name)
  local found = known and redis.call('XRANGE', KEYS[1], known, known)[1]
  if found then remove(known, found[2]) elseif known then redis.call('HDEL', KEYS[2], name) end
  if record ~= '' then
    local fields = scope ~= '' and {'n', name, 'r', record, 's', scope} or {'n', name, 'r', record}
    local id = redis.call('XADD', KEYS[1], '*', unpack(fields))
    if name ~= '' then redis.call('HSET', KEYS[2], name, id) end
    if scope ~= '' and redis.call('ZADD', KEYS[4], 0, place(scope, id)) == 1 then
      redis.call('HINCRBY', KEYS[5], scope, 1)
    end
  end
end
local function largest()
  local scope, most, counts = nil, 0, redis.call('HGETALL', KEYS[5])
  for k = 1, #counts, 2 do
    local number = tonumber(counts[k + 1])
    if number > most or (number == most and scope and counts[k] < scope) then scope, most = counts[k], number end
  end
  return scope
end
for _ = 1, redis.call('XLEN', KEYS[1]) - tonumber(ARGV[2]) do
  local first, scope, found = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1], largest(), nil
  if scope and first[2][5] == 's' then  -- an older version appends records without a scope, and removes any
    local oldest = redis.call('ZRANGEBYLEX', KEYS[4], '[' .. scope .. ':', '(' .. scope .. ';', 'LIMIT', 0, 1)[1]
    local id = oldest and string.match(oldest, ':([^:]+)$')
    found = id and redis.call('XRANGE', KEYS[1], id, id)[1]
    if not found then
      if oldest then redis.call('ZREM', KEYS[4], oldest) end
      uncount(scope)
    end
  end
  found = found or first
  remove(found[1], found[2])
end
return 1
"""


@functools.cache
def sha1_of(script: str) -> str:
    """Return the name of a script in the server."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
