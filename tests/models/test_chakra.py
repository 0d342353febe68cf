"""Chakra execution traces: what a profile takes from them, what is named as missing, and what is no trace."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UserError
from paceline.models.chakra import COLLECTIVE, COMPUTE, read_chakra
from paceline.models.profile import entry_text, load_profile
from tests.commands.command_line import paceline


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def data(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def node(
    identity: int, name: str, kind: int, after: list[int], takes_us: int = 0, packed: bool = True, **attributes: int
) -> bytes:  # fmt: skip
    body = number(1, identity) + data(2, name.encode()) + number(3, kind)
    if packed:
        body += data(5, b"".join(varint(each) for each in after))
    else:
        body += b"".join(number(5, each) for each in after)
    body += number(7, takes_us) + varint(99 << 3 | 1) + bytes(8)  # a field that nobody knows
    for key, value in attributes.items():
        body += data(10, data(1, key.encode()) + number(9, value))
    return body


def passes(count: int = 1) -> list[bytes]:
    """As Chakra's own text converter writes data-parallel jobs: two layers, the second's gradient first."""
    nodes: list[bytes] = []
    for i in range(0, 10 * count, 10):
        nodes += [
            node(i, "COMP_NODE_a_FWD", COMPUTE, [i - 2] if i else [], 100),
            node(i + 1, "COMP_NODE_b_FWD", COMPUTE, [i], 50),
            node(i + 2, "COMP_NODE_b_BWD_WG", COMPUTE, [i + 1], 80, packed=False),
            node(i + 3, "COMM_COLL_NODE_b_ALLREDUCE", COLLECTIVE, [i + 2], comm_type=0, comm_size=4000),
            node(i + 4, "COMP_NODE_b_BWD_IG", COMPUTE, [i + 2], 70),
            node(i + 5, "COMP_NODE_a_BWD_WG", COMPUTE, [i + 4], 60),
            node(i + 6, "COMM_COLL_NODE_a_ALLREDUCE", COLLECTIVE, [i + 5], comm_type=0, comm_size=1000),
            node(i + 7, "gather", COLLECTIVE, [i + 5], comm_type=2, comm_size=1000),
            node(i + 8, "optimizer", COMPUTE, [i + 6], 30),
        ]
    return nodes


def write(folder: Path, nodes: list[bytes], rest: bytes = b"") -> Path:
    path = folder / "job.0.et"
    path.write_bytes(b"".join(varint(len(each)) + each for each in [data(1, b"0.0.4"), *nodes]) + rest)
    return path


def test_all_reduces_are_released_when_their_computing_is_done(tmp_path: Path) -> None:
    seen = read_chakra(write(tmp_path, passes()))
    assert seen.sizes == [4000, 1000]
    ((forward_s, released_s),) = seen.steps
    assert forward_s == pytest.approx(180e-6)
    assert released_s == pytest.approx([80e-6, 210e-6])
    assert "1 collectives that are no all-reduce with a size, left out" in seen.unread
    (tmp_path / "p.toml").write_text(entry_text(seen))
    assert load_profile(tmp_path / "p.toml").backward == pytest.approx(210e-6)


def test_a_name_with_a_line_break_stays_a_name(tmp_path: Path) -> None:
    nodes = [
        node(0, "BWD", COMPUTE, [], 9),
        node(1, "all\nreduce\x7f", COLLECTIVE, [0], comm_type=0, comm_size=8),
    ]
    (tmp_path / "p.toml").write_text(entry_text(read_chakra(write(tmp_path, nodes))))
    assert load_profile(tmp_path / "p.toml").layers[0].name == "bucket 0: all?reduce?"


def test_the_first_of_several_passes_is_read(tmp_path: Path) -> None:
    seen = read_chakra(write(tmp_path, passes(3)))
    assert seen.sizes == [4000, 1000]
    assert "passes after the first of 3" in seen.unread


def test_a_backward_pass_without_a_name_is_assumed(tmp_path: Path) -> None:
    nodes = [
        node(0, "all of it", COMPUTE, [], 300),
        node(1, "nccl_all_reduce", COLLECTIVE, [0], comm_size=8),
    ]
    seen = read_chakra(write(tmp_path, nodes))
    assert seen.steps == [(pytest.approx(100e-6), [pytest.approx(200e-6)])]
    assert any(each.startswith("where the backward pass begins") for each in seen.unread)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "holds no nodes"),
        (b"text that is no trace at all", "is no Chakra execution trace"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "without times"),
        (b"\xff" * 100, "is no Chakra execution trace: a number is cut off"),
    ],
)
def test_what_is_no_trace_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: bytes, told: str
) -> None:  # fmt: skip
    path = tmp_path / "x.et"
    path.write_bytes(content)
    assert paceline(monkeypatch, "profile", "--chakra", str(path), "--out", str(tmp_path / "p.toml")) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paceline: {path}: ")
    assert told in line
    assert not (tmp_path / "p.toml").exists()


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([node(1, "a", COMPUTE, [7], 5)], r"node 1 \(a\) waits for node 7, which is not in it"),
        ([node(1, "a", COMPUTE, [2], 5), node(2, "b", COMPUTE, [1], 5)], "waits for itself"),
        ([node(1, "a", COMPUTE, [], 5)], "has no all-reduce with a size"),
        ([node(1, "allreduce", COLLECTIVE, [], comm_size=8)], "nothing is computed before its all-reduces"),
    ],
)
def test_a_graph_that_makes_no_sense_names_the_node(tmp_path: Path, nodes: list[bytes], told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_chakra(write(tmp_path, nodes))


@settings(max_examples=200)
@given(st.integers(0, 2000), st.binary(max_size=40))
def test_a_damaged_trace_never_ends_in_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("et") / "x.et"
    whole = write(path.parent, passes(2)).read_bytes()
    path.write_bytes(whole[: cut % len(whole)] + junk)
    with contextlib.suppress(UserError):
        read_chakra(path)
