-- One call on a store, whole or nothing: redis_link.py sends it, redis.py says what the calls mean.
--
--   KEYS[1]   what every key of this store begins with
--   ARGV      operation, client, number of the write (0: a read), is it a retry,
--             generation, server and writes that the client has seen, arguments of the operation
--
-- Answers {status, generation, server, writes, result ...}; generation is 0 where there is no store.
--
-- A write counts up `writes`. Each server process that serves the store is a generation, which notes
-- how many writes it began with. So a client that has seen more than what a restarted server, or a
-- replica that took over, still knows finds it out by its next call.
local P = KEYS[1]
local op, client, number, retry = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
local seen_generation, seen_server, seen_writes = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local A = {}
for i = 8, #ARGV do A[i - 7] = ARGV[i] end

local META, CLIENTS = P .. 'meta', P .. 'clients'
local RECORDS, KEYNAMES, EPOCHS, LEASES = P .. 'records', P .. 'keys', P .. 'epochs', P .. 'leases'
local LASTS, TRIMS = P .. 'lasts', P .. 'trims'
local SCHEMA = 1
local CLIENTS_KEPT, CLIENT_SECONDS = 1000, 86400

local function seconds()
  local now = redis.call('TIME')
  return tonumber(now[1]) + tonumber(now[2]) / 1000000
end

local function number_at(hash, field)
  return tonumber(redis.call('HGET', hash, field) or '0')
end

-- All digits, where tostring would write 1e+15.
local function whole(value)
  return string.format('%.0f', value)
end

-- Which store, which server process, and did it lose anything that the client has seen?

local server = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local schema = redis.call('HGET', META, 'schema')
if not schema then
  if seen_generation > 0 then
    if op == 'delete_all' and A[1] == '' then return {'ok', 0, server, 0, ''} end -- done before
    return {'lost', 0, server, 0}
  end
  if op == 'open' and A[1] == '0' then return {'absent', 0, server, 0} end
  if number > 0 or op == 'open' then -- to read makes no store
    redis.call('HSET', META, 'schema', SCHEMA, 'created', string.format('%.6f', seconds()), 'generation', 1,
      'server', server, 'writes', 0, 'g:1', server .. ' 0')
    schema = SCHEMA
  end
elseif tonumber(schema) ~= SCHEMA then
  return {'schema', 0, server, 0, schema, tostring(SCHEMA)}
end

local writes, generation = number_at(META, 'writes'), number_at(META, 'generation')

local function begun(which)
  local entry = redis.call('HGET', META, 'g:' .. whole(which))
  if not entry then return nil, nil end
  local process, start = string.match(entry, '(%x+) (%d+)')
  return process, tonumber(start)
end

if schema and redis.call('HGET', META, 'server') ~= server then
  generation = generation + 1
  redis.call('HSET', META, 'generation', whole(generation), 'server', server,
    'g:' .. whole(generation), server .. ' ' .. whole(writes))
end

if seen_generation > 0 then
  local process = begun(seen_generation)
  local _, end_of_seen = begun(seen_generation + 1)
  if process ~= seen_server or (end_of_seen or writes) < seen_writes then
    return {'lost', generation, server, end_of_seen or writes}
  end
end

-- Was this write done already, and only its answer lost?

if number > 0 then
  local entry = redis.call('HGET', CLIENTS, client)
  local done, answer = 0, ''
  if entry then
    local text
    text, answer = string.match(entry, '^(%d+) %d+ (.*)$')
    done = tonumber(text)
  elseif retry and number > 1 then
    return {'forgotten', generation, server, writes}
  end
  if done == number then return {'ok', generation, server, writes, answer} end
  if done > number then return {'late', generation, server, writes} end
end

local function read(...)
  return {'ok', generation, server, writes, ...}
end

local function wrote(answer)
  writes = redis.call('HINCRBY', META, 'writes', 1)
  redis.call('HSET', CLIENTS, client, whole(number) .. ' ' .. whole(seconds()) .. ' ' .. answer)
  return {'ok', generation, server, writes, answer}
end

local function refused(...)
  return {'refused', generation, server, writes, ...}
end

-- Records: "version value".

local function record(key)
  local entry = redis.call('HGET', RECORDS, key)
  if not entry then return '0', '' end
  return string.match(entry, '^(%d+) (.*)$')
end

local function put(key, value)
  local version = redis.call('HINCRBY', META, 'clock', 1)
  redis.call('HSET', RECORDS, key, whole(version) .. ' ' .. value)
  redis.call('ZADD', KEYNAMES, 0, key)
  return whole(version)
end

-- Epochs: "epoch generation". Draws that a generation before lost are not handed out again: the first
-- one of a generation leaves out as many numbers as the store is milliseconds old.

local function newest(name)
  local entry = redis.call('HGET', EPOCHS, name)
  if not entry then return 0, 1 end
  local epoch, drawn_in = string.match(entry, '(%d+) (%d+)')
  return tonumber(epoch), tonumber(drawn_in)
end

local function draw(name)
  local epoch, drawn_in = newest(name)
  if drawn_in < generation then
    epoch = epoch + math.ceil(1000 * (seconds() - number_at(META, 'created')))
  end
  epoch = epoch + 1
  redis.call('HSET', EPOCHS, name, whole(epoch) .. ' ' .. whole(generation))
  return whole(epoch)
end

-- Leases: "epoch until holder".

local function lease(name)
  local entry = redis.call('HGET', LEASES, name)
  if not entry then return nil end
  local epoch, till, holder = string.match(entry, '^(%d+) ([%d.]+) (.*)$')
  return epoch, tonumber(till), holder
end

local function hold(name, epoch, holder, length)
  local till = string.format('%.6f', seconds() + tonumber(length))
  redis.call('HSET', LEASES, name, epoch .. ' ' .. till .. ' ' .. holder)
end

local function begins(name, prefix)
  return string.sub(name, 1, #prefix) == prefix
end

local operations = {}

function operations.open()
  if redis.call('HLEN', CLIENTS) > CLIENTS_KEPT then
    local all, oldest = redis.call('HGETALL', CLIENTS), seconds() - CLIENT_SECONDS
    for i = 1, #all, 2 do
      if tonumber(string.match(all[i + 1], '^%d+ (%d+)')) < oldest then
        redis.call('HDEL', CLIENTS, all[i])
      end
    end
  end
  return read()
end

function operations.get()
  return read(record(A[1]))
end

function operations.put()
  local version = record(A[1])
  if A[3] ~= '' and A[3] ~= version then return refused(version) end
  return wrote(put(A[1], A[2]))
end

function operations.delete()
  local version = record(A[1])
  if A[2] ~= '' and A[2] ~= version then return refused(version) end
  redis.call('HDEL', RECORDS, A[1])
  redis.call('ZREM', KEYNAMES, A[1])
  return wrote('')
end

function operations.list()
  local from = A[2] >= A[1] and '(' .. A[2] or '[' .. A[1]
  local keys = redis.call('ZRANGEBYLEX', KEYNAMES, from, '[' .. A[1] .. '\255', 'LIMIT', 0, A[3])
  local rows = {}
  for i, key in ipairs(keys) do
    local version, value = record(key)
    rows[i] = {key, version, value}
  end
  return read(rows)
end

function operations.put_fenced()
  local epoch = newest(A[1])
  if tonumber(A[2]) < epoch then return refused(whole(epoch)) end
  for i = 3, #A, 2 do put(A[i], A[i + 1]) end
  return wrote('')
end

function operations.extend()
  local stream, last = A[1], number_at(LASTS, A[1])
  if A[2] ~= '' and tonumber(A[2]) ~= last then return refused(whole(last)) end
  for i = 3, #A do
    last = last + 1
    redis.call('XADD', P .. 's:' .. stream, whole(last) .. '-0', 'v', A[i])
  end
  redis.call('HSET', LASTS, stream, whole(last))
  return wrote(whole(last))
end

function operations.read()
  local through = number_at(TRIMS, A[1])
  if A[2] ~= '' and tonumber(A[2]) < through then return refused(whole(through)) end
  local from = whole(tonumber(A[2] ~= '' and A[2] or '0') + 1) .. '-0'
  local rows = redis.call('XRANGE', P .. 's:' .. A[1], from, '+', 'COUNT', A[3])
  local entries = {}
  for i, row in ipairs(rows) do
    entries[2 * i - 1] = string.match(row[1], '^%d+')
    entries[2 * i] = row[2][2]
  end
  return read(entries)
end

function operations.last()
  return read(whole(number_at(LASTS, A[1])))
end

function operations.trim()
  local through = math.min(tonumber(A[2]), number_at(LASTS, A[1]))
  if through > number_at(TRIMS, A[1]) then
    redis.call('XTRIM', P .. 's:' .. A[1], 'MINID', whole(through + 1) .. '-0')
    redis.call('HSET', TRIMS, A[1], whole(through))
  end
  return wrote('')
end

function operations.acquire()
  local _, till, holder = lease(A[1])
  if till and till > seconds() and holder ~= A[2] then return refused() end
  local epoch = draw(A[1])
  hold(A[1], epoch, A[2], A[3])
  return wrote(epoch)
end

function operations.renew()
  local epoch, _, holder = lease(A[1])
  if epoch ~= A[3] or holder ~= A[2] then return refused() end
  hold(A[1], epoch, holder, A[4])
  return wrote('')
end

function operations.release()
  local epoch, _, holder = lease(A[1])
  if epoch == A[3] and holder == A[2] then redis.call('HDEL', LEASES, A[1]) end
  return wrote('')
end

function operations.holder()
  local epoch, till, holder = lease(A[1])
  if not till or till <= seconds() then return read('0', '') end
  return read(epoch, holder)
end

function operations.next_epoch()
  return wrote(draw(A[1]))
end

function operations.newest_epoch()
  local epoch = newest(A[1])
  return read(whole(epoch))
end

function operations.delete_all()
  local prefix = A[1]
  if prefix == '' then
    for _, stream in ipairs(redis.call('HKEYS', LASTS)) do redis.call('UNLINK', P .. 's:' .. stream) end
    redis.call('UNLINK', META, CLIENTS, RECORDS, KEYNAMES, EPOCHS, LEASES, LASTS, TRIMS)
    return {'ok', 0, server, 0, ''} -- who goes on with it is told that it is lost
  end
  local keys = redis.call('ZRANGEBYLEX', KEYNAMES, '[' .. prefix, '[' .. prefix .. '\255')
  for _, key in ipairs(keys) do
    redis.call('HDEL', RECORDS, key)
    redis.call('ZREM', KEYNAMES, key)
  end
  for _, stream in ipairs(redis.call('HKEYS', LASTS)) do
    if begins(stream, prefix) then
      redis.call('UNLINK', P .. 's:' .. stream)
      redis.call('HDEL', LASTS, stream)
      redis.call('HDEL', TRIMS, stream)
    end
  end
  for _, hash in ipairs({LEASES, EPOCHS}) do
    for _, name in ipairs(redis.call('HKEYS', hash)) do
      if begins(name, prefix) then redis.call('HDEL', hash, name) end
    end
  end
  return wrote('')
end

return operations[op]()
