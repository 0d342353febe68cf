"""The capture file and the Wireshark dissector: what the switch writes, tshark reads, field by field."""

import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.core import describe, wire
from paceline.live.switch.pcap import open_pcap
from tests.live.switch.test_daemon import running
from tests.live.workers import Workers

DISSECTOR = Path(__file__).parents[3] / "tools/wireshark/paceline.lua"
needs_tshark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def test_the_dissectors_layout_is_that_of_the_code() -> None:
    text = DISSECTOR.read_text(encoding="utf-8")
    layout = re.findall(r'\{ "(\w+)", (\d+), (\d+) \}', text)
    assert wire.WIRE.fields is not None
    expected = [
        (name, str(wire.WIRE.fields[name][1]), str(wire.WIRE.fields[name][0].itemsize))
        for name in wire.FIELD_NAMES
    ]
    assert layout == expected
    kinds = {int(code): name for code, name in re.findall(r'\[(\d+)\] = "(\w+)"', text)}
    assert kinds == {code: told.partition(":")[0] for code, told in wire.KIND_NAMES.items()}
    flags = dict(re.findall(r'paceline\.flag\.(\w+)", "\w+", 8, nil, (0x\w+)', text))
    assert {int(bit, 16): name for name, bit in flags.items()} == {
        code: told.partition(":")[0] for code, told in wire.FLAG_NAMES.items()
    }


def test_the_dissectors_words_are_those_of_the_page() -> None:
    text = DISSECTOR.read_text(encoding="utf-8")
    found = re.findall(r'(\w+) = ProtoField\.\w+\("paceline\.(\w+)\.(\w+)"', text)
    names = {code: told.partition(":")[0] for code, told in wire.KIND_NAMES.items()}
    expected = {
        (place, names[kind], name)
        for kind, fields in describe.KIND_FIELDS.items()
        for place, (name, _) in fields.items()
    }
    assert {words for words in found if words[1] != "flag"} == expected


def _tshark(capture: Path, *words: str) -> str:
    command = ["tshark", "-X", f"lua_script:{DISSECTOR}", "-r", str(capture), *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "error" not in ended.stderr.lower(), ended.stderr
    return ended.stdout


def _write_capture(path: Path, datagrams: list[bytes]) -> None:
    """Datagrams that a switch would drop, and so not capture."""
    fd = open_pcap(path)
    for data in datagrams:
        udp = struct.pack(">HHHH", 40_000, 7_078, 8 + len(data), 0) + data
        ip = struct.pack(">BBHHHBBHII", 0x45, 0, 20 + len(udp), 0, 0x4000, 64, 17, 0, 0x7F000001, 0x7F000001)
        os.write(fd, struct.pack("<IIII", 1, 0, len(ip + udp), len(ip + udp)) + ip + udp)
    os.close(fd)


@needs_tshark
def test_tshark_reads_what_the_switch_wrote(tmp_path: Path) -> None:
    capture = tmp_path / "packets.pcap"
    with running(pcap=capture, shards=2) as switch:
        workers = Workers([switch.port], [0, 0], count=8)
        workers.run(40)
        workers.check(40)
        ports = switch.switch.ports
        workers.close()
    counted = switch.total("paceline_packets_total")
    fields = [
        "udp.srcport",
        "udp.dstport",
        "ip.checksum.status",
        "paceline.kind",
        "paceline.chunk",
        "paceline.mask",
    ]
    options = [word for name in fields for word in ("-e", name)]
    text = _tshark(capture, "-o", "ip.check_checksum:TRUE", "-T", "json", *options)
    packets: list[dict[str, Any]] = [packet["_source"]["layers"] for packet in json.loads(text)]
    assert len(packets) == counted
    assert {packet["ip.checksum.status"][0] for packet in packets} == {"1"}
    gradients = [packet for packet in packets if packet["paceline.kind"] == [str(wire.GRADIENT)]]
    results = [packet for packet in packets if packet["paceline.kind"] == [str(wire.RESULT)]]
    assert {int(packet["paceline.chunk"][0]) for packet in results} == set(range(40))
    for packet in gradients:
        worker_port = int(packet["udp.srcport"][0])
        mask = int(packet["paceline.mask"][0], 16)
        assert worker_port == workers.sockets[mask.bit_length() - 1].port
        assert int(packet["udp.dstport"][0]) == ports[(int(packet["paceline.chunk"][0]) >> 5) % 2]


@needs_tshark
def test_tshark_takes_only_ours_and_sees_a_wrong_length(tmp_path: Path) -> None:
    capture = tmp_path / "packets.pcap"
    packet = wire.new_packets(1)[0]
    packet.kind, packet.job, packet.mask, packet.count = wire.GRADIENT, 1, 1, 8
    packet.fan_in = packet.fan_in_upper = packet.level = 1
    data = wire.encode(packet, np.arange(8, dtype=np.int32))
    _write_capture(capture, [b"something else", data[:-4], data])
    told = _tshark(capture, "-T", "fields", "-e", "frame.protocols", "-e", "_ws.expert.message").splitlines()
    assert "paceline" not in told[0]
    assert "Length and element count disagree" in told[1]
    assert "paceline" in told[2]
    assert "disagree" not in told[2]


@needs_tshark
def test_messages_between_hosts_have_their_own_fields(tmp_path: Path) -> None:
    capture = tmp_path / "packets.pcap"
    fields = {
        (wire.KIND_NAMES[kind].partition(":")[0], place, name)
        for kind, words in describe.KIND_FIELDS.items()
        for place, (name, _) in words.items()
    }
    datagrams = []
    for kind in describe.KIND_FIELDS:
        packet = wire.new_packets(1)[0]
        packet.kind, packet.job, packet.fan_in, packet.fan_in_upper, packet.level = kind, 1, 1, 1, 1
        packet.chunk, packet.index, packet.mask, packet.share, packet.window = 21, 22, 23, 24, 25
        packet.offer = 26
        datagrams.append(wire.encode(packet))
    _write_capture(capture, datagrams)
    names = [f"paceline.{kind}.{name}" for kind, _, name in sorted(fields)]
    words = [word for name in ("paceline.kind", *names) for word in ("-e", name)]
    rows = [line.split("\t") for line in _tshark(capture, "-T", "fields", *words).splitlines()]
    told = {name: row[1 + at] for row in rows for at, name in enumerate(names) if row[1 + at]}
    values = {"chunk": 21, "index": 22, "mask": 23, "share": 24, "window": 25, "offer": 26}
    assert {name: int(value, 0) for name, value in told.items()} == {
        f"paceline.{kind}.{name}": values[place] for kind, place, name in fields
    }
