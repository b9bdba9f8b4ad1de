"""The scripts that count calls to upstreams in the server (call_counts.py names the keys).

COUNT_CALLS makes the decisions of `features/limits/core.py` in the server. A test compares the two.
"""

from __future__ import annotations

COUNT_CALLS = """
-- KEYS: one of the counters. ARGV: prefix of their names, process, day, month, slot, slots of a minute, later ones
-- that count as the present one, seconds until a process is dead, then operations: kind (reserve, settle, read), number
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
    local sign = kind == 'settle' and -1 or 1
    if kind == 'settle' then add_paid(scope.name, amounts[4], amounts[5]) end
    if kind == 'reserve' and result[1] == '0' then add(scope.name, 'r', slot, amounts[1]) end
    if kind == 'settle' or (kind == 'reserve' and result[1] == '0') then
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
