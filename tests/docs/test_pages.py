"""Every page: links resolve, commands and snippets run, words are the glossary's, nothing local slips in."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, blocks, commands, links, name_of

RUN = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / page
        for page in (
            "api.md",
            "guide.md",
            "tutorial.md",
            "simulating.md",
            "running.md",
            "steering.md",
            "reports.md",
            "metrics.md",
        )
    ),
]
LIMIT_S = 600
"""The first on a machine compiles for a minute, on a busy one for several."""
# fmt: off
TERMS = [
    "chunk", "contribution", "mask", "aggregator", "slot", "custodian", "leader", "straggler", "fan-in",
    "epoch", "window", "span", "lane", "pool", "reminder", "pull", "answer", "flush", "preemption",
    "downgrade", "BDP", "JCT", "makespan", "contention", "verdict", "offer", "horizon", "driver",
    "exact",
]
# fmt: on


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path) if path else page
        assert there.exists(), f"{name_of(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{name_of(page)} links to {target}"


def _cases(language: str) -> list[tuple[Path, str]]:
    if language == "sh":
        return [(page, command) for page in RUN for command in commands(page)]
    return [(page, block.text) for page in RUN for block in blocks(page, language) if not block.skipped]


def _workplace(folder: Path) -> dict[str, str]:
    """A folder with the examples, as a user's clone has them, and an environment that finds our commands."""
    (folder / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "120"}


@pytest.mark.parametrize(("page", "command"), _cases("sh"), ids=lambda case: str(case)[-60:])
def test_command_runs(page: Path, command: str, tmp_path: Path) -> None:
    assert shlex.split(command)[0] == "paceline", (
        f"{name_of(page)}: only paceline is run; mark others as not run"
    )
    done = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env=_workplace(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("page", "snippet"), _cases("python"), ids=lambda case: str(case)[-40:])
def test_snippet_runs(page: Path, snippet: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", snippet],
        cwd=tmp_path,
        env=_workplace(tmp_path),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr


def test_scenarios_in_toml_blocks_are_valid(tmp_path: Path) -> None:
    from paceline.sim.scenario import load_scenario

    for block in blocks(ROOT / "docs/simulating.md", "toml"):
        text = block.text if "[[job]]" in block.text else f"{block.text}\n[[job]]\n"
        (tmp_path / "scenario.toml").write_text(text, encoding="utf-8")
        load_scenario(tmp_path / "scenario.toml")


@pytest.mark.parametrize("term", TERMS)
def test_glossary_has_the_term(term: str) -> None:
    assert f"| **{term}** |" in (ROOT / "docs/glossary.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_names_no_place_of_one_machine(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(work|home|root|tmp|usr)/", text)


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs/images").glob("*.png"):
        assert picture.stat().st_size < 200_000, picture.name


def test_decisions_are_numbered_once() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs/adr").glob("*.md")]
    assert len(numbers) == len(set(numbers))
    assert all(re.fullmatch(r"\d{4}", number) for number in numbers)


def test_exit_codes_in_the_readme_are_those_of_the_code() -> None:
    from paceline import errors

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for code in (errors.EXIT_OK, errors.EXIT_FAILED, errors.EXIT_USAGE):
        assert f"| {code} |" in text
