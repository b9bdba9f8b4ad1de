"""The scripts that run in the engine. Each changes the keys of one hash tag, atomically.

layout.py names the keys. Scripts of the owner carry its epoch: an engine that has seen a later one answers FENCED.
Scripts of a shard take T as an argument, and as keys the books T:b and whatever else they are sure to use: while a slot
moves to another node of a cluster, the engine then refuses the whole script, not its second half. A script removes a
value before its head, and stores it before its head. So what an interrupted script leaves behind is a head that has no
value, or a total that is wrong; OPEN counts again after an error. What scripts remove, they publish.
"""

from __future__ import annotations

import hashlib

from knapcache.store.redis.call_scripts import COUNT_CALLS, COUNT_IN_FLIGHT
from knapcache.store.redis.records import SIZE_OFFSET

_BOOKS = f"""
local T, channel, B = ARGV[1], ARGV[2], KEYS[1]
local x = redis.call('HMGET', B, 'used', 'count', 'nused', 'limit', 'nroom', 'epoch')
local used, count, nused = tonumber(x[1] or 0), tonumber(x[2] or 0), tonumber(x[3] or 0)
local limit, nroom, epoch = tonumber(x[4] or -1), tonumber(x[5] or -1), tonumber(x[6] or 0)
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
if tonumber(ARGV[3]) < epoch then return redis.error_reply('FENCED another owner has taken over') end
epoch = tonumber(ARGV[3])
"""

OPEN = (
    _BOOKS
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
    _BOOKS
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
    _BOOKS
    + """
-- ARGV: T, channel, name, size, milliseconds to live or '', value, n or t (layout.py), channel of arrivals, shard.
-- Put an entry into the nursery; the oldest give way.
local name, size, life = ARGV[3], tonumber(ARGV[4]), ARGV[5]
if nroom < 0 then return 'closed' end
if size > nroom then return 'full' end
remove_parked(name)
while nused + size > nroom do
  local oldest = redis.call('LINDEX', T .. ':t', 0) or redis.call('LINDEX', T .. ':n', 0)
  if not oldest then break end
  remove_parked(oldest)
end
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
    _BOOKS
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
-- KEYS: meta. ARGV: format, shards, mark of the secret, encrypted. Store the description if it is new; return it.
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'format', ARGV[1], 'shards', ARGV[2], 'secret', ARGV[3], 'encrypted', ARGV[4])
end
return redis.call('HMGET', KEYS[1], 'format', 'shards', 'secret', 'encrypted')
"""

ACQUIRE = """
-- KEYS: owner, epoch. ARGV: token, lease in milliseconds. Return the epoch of the new owner, or nothing.
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return false end
local now = redis.call('TIME')
local epoch = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, now[1] * 1000000 + now[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], string.format('%.0f', epoch))
return string.format('%.0f', epoch)
"""

RENEW = """
-- KEYS: owner, epoch. ARGV: token, lease in milliseconds, epoch. Return 1 if this owner goes on, else 0.
-- A lease that ran out is renewed if no other process has acquired one since.
local owner, epoch = redis.call('GET', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or 0)
if epoch > tonumber(ARGV[3]) or (owner and owner ~= ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], ARGV[3])
return 1
"""

RELEASE = """
-- KEYS: owner. ARGV: token.
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

LEAD = """
-- KEYS: lease, keys of values. ARGV: token, life in milliseconds. Return the first value, 1 for the lease, or 0.
-- A byte after the token of the holder says that another process waits.
for i = 2, #KEYS do
  local value = redis.call('GET', KEYS[i])
  if value then return value end
end
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
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

_OWNER_FENCE = """
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[2]) or 0) then
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
-- KEYS: questions. ARGV: record, most records, milliseconds to live, channel of arrivals.
if redis.call('LLEN', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('RPUSH', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PUBLISH', ARGV[4], 'q')
return 1
"""

TAKE_QUESTIONS = (
    _OWNER_FENCE
    + """
-- KEYS: questions, epoch. ARGV: epoch.
local found = redis.call('LRANGE', KEYS[1], 0, -1)
redis.call('DEL', KEYS[1])
return found
"""
)

APPEND = """
-- KEYS: stream, ids by name, epoch. ARGV: new epoch, most records, names and records. A name "" is that of no record.
redis.call('SET', KEYS[3], ARGV[1], 'NX')
local function forget(name)
  local id = redis.call('HGET', KEYS[2], name)
  if id then
    redis.call('XDEL', KEYS[1], id)
    redis.call('HDEL', KEYS[2], name)
  end
end
for k = 3, #ARGV, 2 do
  local name, record = ARGV[k], ARGV[k + 1]
  if name ~= '' then forget(name) end
  if record ~= '' then
    local id = redis.call('XADD', KEYS[1], '*', 'n', name, 'r', record)
    if name ~= '' then redis.call('HSET', KEYS[2], name, id) end
  end
end
local excess = redis.call('XLEN', KEYS[1]) - tonumber(ARGV[2])
if excess > 0 then
  for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', excess)) do
    redis.call('XDEL', KEYS[1], entry[1])
    if entry[2][1] == 'n' and redis.call('HGET', KEYS[2], entry[2][2]) == entry[1] then
      redis.call('HDEL', KEYS[2], entry[2][2])
    end
  end
end
return 1
"""

SHA1 = {
    script: hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    for script in (
        OPEN, DECIDE, PARK, TAKE, DESCRIBE, ACQUIRE, RENEW, RELEASE, SAVE_SNAPSHOT, PUT_COUNTS, TAKE_COUNTS,
        LEAD, RENEW_KEY, END_LEASE, ASK, TAKE_QUESTIONS, APPEND, COUNT_CALLS, COUNT_IN_FLIGHT,
    )
}  # fmt: skip
