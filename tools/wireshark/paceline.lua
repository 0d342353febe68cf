-- Paceline's packets in Wireshark and tshark.
--
-- Use:  tshark -X lua_script:tools/wireshark/paceline.lua -r packets.pcap
-- or copy this file to the folder "Personal Lua Plugins" (Help, About Wireshark, Folders).
--
-- Any UDP datagram that begins with the magic number 0x5041 and version 2 is taken for ours, whatever its port.

local paceline = Proto("paceline", "Paceline in-network aggregation")

local KINDS = {
  [1] = "gradient", [2] = "partial", [3] = "result", [4] = "reminder",
  [5] = "pull", [6] = "answer", [7] = "query", [8] = "ack", [9] = "nack",
  [10] = "receipt", [11] = "has", [12] = "leaves", [13] = "report", [14] = "role",
  [15] = "path",
}
local HEADER_BYTES = 64
local MAGIC = 0x5041
local VERSION = 2

local f = {
  magic = ProtoField.uint16("paceline.magic", "Magic", base.HEX),
  version = ProtoField.uint8("paceline.version", "Version"),
  kind = ProtoField.uint8("paceline.kind", "Kind", base.DEC, KINDS),
  flag = ProtoField.uint8("paceline.flag", "Flags", base.HEX),
  ecn = ProtoField.bool("paceline.flag.ecn", "ECN", 8, nil, 0x01),
  flush = ProtoField.bool("paceline.flag.flush", "Flush", 8, nil, 0x02),
  collision = ProtoField.bool("paceline.flag.collision", "Collision", 8, nil, 0x04),
  custody = ProtoField.bool("paceline.flag.custody", "Custody", 8, nil, 0x08),
  from_switch = ProtoField.bool("paceline.flag.from_switch", "FromSwitch", 8, nil, 0x10),
  priority = ProtoField.uint8("paceline.priority", "Priority"),
  job = ProtoField.uint16("paceline.job", "Job"),
  chunk = ProtoField.uint64("paceline.chunk", "Chunk"),
  epoch = ProtoField.uint16("paceline.epoch", "Epoch"),
  count = ProtoField.uint16("paceline.count", "Elements"),
  index = ProtoField.uint32("paceline.index", "Aggregator"),
  mask = ProtoField.uint64("paceline.mask", "Mask", base.HEX),
  fan_in = ProtoField.uint8("paceline.fan_in", "Fan-in"),
  fan_in_upper = ProtoField.uint8("paceline.fan_in_upper", "Fan-in of the upper level"),
  rack = ProtoField.uint8("paceline.rack", "Rack"),
  level = ProtoField.uint8("paceline.level", "Level"),
  worker = ProtoField.uint16("paceline.worker", "Worker"),
  custodian = ProtoField.uint16("paceline.custodian", "Custodian"),
  share = ProtoField.uint64("paceline.share", "Share", base.HEX),
  owner = ProtoField.uint16("paceline.owner", "Owner"),
  window = ProtoField.uint16("paceline.window", "Window"),
  offer = ProtoField.uint32("paceline.offer", "Offered aggregator"),
  tag = ProtoField.uint64("paceline.tag", "Tag", base.HEX),
  payload = ProtoField.bytes("paceline.payload", "Elements, 32 bits each, little-endian"),
}

-- Messages between hosts have other words in some places: by kind, the place and the field that stands there.
local WORDS = {
  receipt = {
    chunk = ProtoField.uint64("paceline.receipt.arrived", "Arrived"),
    index = ProtoField.uint32("paceline.receipt.received", "All received below"),
  },
  has = { chunk = ProtoField.uint64("paceline.has.oldest", "All results below") },
  leaves = { chunk = ProtoField.uint64("paceline.leaves.oldest", "All results below") },
  report = {
    chunk = ProtoField.uint64("paceline.report.computed", "Chunks computed"),
    mask = ProtoField.uint64("paceline.report.sent", "Chunks sent"),
    share = ProtoField.uint64("paceline.report.finished", "All results below"),
    window = ProtoField.uint16("paceline.report.window", "Window of the worker"),
  },
  role = { mask = ProtoField.uint64("paceline.role.leaders", "Leaders", base.HEX) },
  path = {
    chunk = ProtoField.uint64("paceline.path.oldest", "All results below"),
    index = ProtoField.uint32("paceline.path.number", "Number of the message"),
    window = ProtoField.uint16("paceline.path.reason", "Why it has left the switch"),
    offer = ProtoField.uint32("paceline.path.state", "Whether it uses the switch"),
  },
}

local fields = {}
for _, field in pairs(f) do table.insert(fields, field) end
for _, words in pairs(WORDS) do
  for _, field in pairs(words) do table.insert(fields, field) end
end
paceline.fields = fields

local wrong_length = ProtoExpert.new(
  "paceline.wrong_length", "Length and element count disagree", expert.group.MALFORMED, expert.severity.ERROR)
paceline.experts = { wrong_length }

-- Where each field lies: name, offset, bytes. tests/live/switch/test_dissector.py holds this table to the code.
local LAYOUT = {
  { "magic", 0, 2 }, { "version", 2, 1 }, { "kind", 3, 1 }, { "flag", 4, 1 }, { "priority", 5, 1 },
  { "job", 6, 2 }, { "chunk", 8, 8 }, { "epoch", 16, 2 }, { "count", 18, 2 }, { "index", 20, 4 },
  { "mask", 24, 8 }, { "fan_in", 32, 1 }, { "fan_in_upper", 33, 1 }, { "rack", 34, 1 }, { "level", 35, 1 },
  { "worker", 36, 2 }, { "custodian", 38, 2 }, { "share", 40, 8 }, { "owner", 48, 2 },
  { "window", 50, 2 }, { "offer", 52, 4 }, { "tag", 56, 8 },
}
local FLAGS = { "ecn", "flush", "collision", "custody", "from_switch" }

local function is_ours(buffer)
  return buffer:len() >= HEADER_BYTES and buffer(0, 2):uint() == MAGIC and buffer(2, 1):uint() == VERSION
end

function paceline.dissector(buffer, pinfo, tree)
  if not is_ours(buffer) then return 0 end
  local kind = KINDS[buffer(3, 1):uint()] or "unknown"
  local job, chunk = buffer(6, 2):uint(), buffer(8, 8):uint64()
  local count = buffer(18, 2):uint()
  local words = WORDS[kind] or {}
  local told = string.format("%s job %d", kind, job)
  if not WORDS[kind] then told = string.format("%s chunk %s", told, tostring(chunk)) end
  pinfo.cols.protocol = "Paceline"
  pinfo.cols.info = string.format("%s, worker %d", told, buffer(36, 2):uint())
  if not WORDS[kind] then pinfo.cols.info:append(", mask 0x" .. buffer(24, 8):bytes():tohex()) end
  local top = tree:add(paceline, buffer(), "Paceline: " .. told)
  for _, place in ipairs(LAYOUT) do
    local name, range = place[1], buffer(place[2], place[3])
    local item = top:add(words[name] or f[name], range)
    if name == "flag" then
      for _, flag in ipairs(FLAGS) do item:add(f[flag], range) end
    end
  end
  if buffer:len() ~= HEADER_BYTES + 4 * count then top:add_proto_expert_info(wrong_length) end
  if buffer:len() > HEADER_BYTES then top:add(f.payload, buffer(HEADER_BYTES)) end
  return buffer:len()
end

paceline:register_heuristic("udp", function(buffer, pinfo, tree)
  if not is_ours(buffer) then return false end
  paceline.dissector(buffer, pinfo, tree)
  return true
end)
