from pathlib import Path

import pytest

from paceline.errors import UserError
from paceline.toml import Name, Section, apply_override, key_lines, load
from paceline.units import Rate


class Link(Section):
    rate: Rate
    names: list[str] = []


class Job(Section):
    name: Name
    workers: int


class Scenario(Section):
    link: Link
    job: list[Job] = []


TEXT = """\
# a comment
[link]
rate = "10 Gbit/s"

[[job]]
name = "a"
workers = 2
[[job]]
name = "b"
workers = 3
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(text)
    return path


def error_of(tmp_path: Path, text: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load(write(tmp_path, text), Scenario, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_right_file_loads(tmp_path: Path) -> None:
    scenario = load(write(tmp_path, TEXT), Scenario)
    assert scenario.link.rate == 10e9
    assert [job.workers for job in scenario.job] == [2, 3]


def test_an_unknown_key_names_itself_its_line_and_the_nearest(tmp_path: Path) -> None:
    message = error_of(tmp_path, TEXT.replace('name = "b"\nworkers', 'name = "b"\nwrokers'))
    assert "scenario.toml:10" in message
    assert "'job.1.wrokers'" in message
    assert "'workers'" in message


def test_a_bad_value_names_its_line(tmp_path: Path) -> None:
    assert "scenario.toml:3: link.rate" in error_of(tmp_path, TEXT.replace("10 Gbit/s", "-10 Gbit/s"))


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "'job.0.workers' is missing" in error_of(tmp_path, TEXT.replace("workers = 2\n", ""))


def test_broken_toml_and_missing_files_are_one_line(tmp_path: Path) -> None:
    assert "not valid TOML" in error_of(tmp_path, "[link\n")
    with pytest.raises(UserError, match="no such file"):
        load(tmp_path / "none.toml", Scenario)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("link = " + "[" * 100_000, "nested too deep"),
        ("link = " + "{a=" * 100_000, "nested too deep"),
        ("seed = " + "9" * 5000, "not valid TOML"),
        (TEXT.replace("workers = 3", "workers = " + "9" * 400), "workers: is more than can be reckoned with"),
        (TEXT.replace('"b"', '"b\\u001b[2J"'), "name: has a character that cannot be shown"),
        (TEXT.replace('"b"', '"b\\n"'), "name: has a character that cannot be shown"),
    ],
)
def test_what_is_beyond_reason_is_one_short_line(tmp_path: Path, text: str, told: str) -> None:
    message = error_of(tmp_path, text)
    assert told in message
    assert len(message) < 400


def test_lines_of_keys_without_end_take_no_room() -> None:
    deep = ".".join("a" * 100_000)
    assert len(key_lines(f"{deep} = 1\n[{deep}]\n")) < 100


def test_overrides_reach_into_lists_and_are_validated(tmp_path: Path) -> None:
    scenario = load(write(tmp_path, TEXT), Scenario, ["job.1.workers=7", "link.rate=1 Gbit/s"])
    assert scenario.job[1].workers == 7
    assert scenario.link.rate == 1e9
    assert "--set: unknown key 'link.rat'" in error_of(tmp_path, TEXT, "link.rat=3")


@pytest.mark.parametrize("override", ["nothing", "=3", "job.9.workers=1", "job.0.name.x=1"])
def test_an_override_without_a_place_is_an_error(override: str) -> None:
    with pytest.raises(UserError, match="--set"):
        apply_override({"job": [{"name": "a"}]}, override)


class Tables(Section):
    policy: dict[str, Job] = {}


def test_a_table_of_tables_knows_its_keys_and_lines(tmp_path: Path) -> None:
    path = write(tmp_path, '[policy.esa]\nname = "a"\nwrokers = 3\n')
    with pytest.raises(
        UserError, match=r"scenario.toml:3: unknown key 'policy.esa.wrokers'; did you mean 'workers'"
    ):
        load(path, Tables)


def test_lines_of_nested_tables() -> None:
    lines = key_lines("[[a]]\nx = 1\n[a.b]\ny = 2\n[[a]]\nx.z = 3\n")
    assert lines[("a", 0, "x")] == 2
    assert lines[("a", 0, "b", "y")] == 4
    assert lines[("a", 1, "x", "z")] == 6
