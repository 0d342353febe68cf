"""The page about runs lists what jobs really find, and the codes that the command really gives."""

from paceline.launch.jobs import RunJob
from paceline.launch.launchers.protocol import MEANINGS
from paceline.launch.replan import POLICIES
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/running.md").read_text(encoding="utf-8")


def test_every_variable_is_listed_with_its_meaning() -> None:
    table = PAGE.split("<!-- variables -->")[1].split("\n\n")[0].strip().splitlines()[2:]
    assert table == [f"| `{name}` | {meaning} |" for name, meaning in MEANINGS.items()]


def test_every_key_of_a_job_is_listed() -> None:
    for key in RunJob.__dataclass_fields__:
        assert key == "job" or f"| `{key}` |" in PAGE


def test_the_policies_of_a_run_are_named() -> None:
    for name in POLICIES:
        assert f"`{name}`" in PAGE or name.startswith("sjf-bco-")
