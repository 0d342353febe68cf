"""Progress off a terminal: nothing of short commands, lines with what is left of long ones."""

import io
import time

import pytest

from paceline import progress as shown
from paceline.progress import ProgressDisplay, in_words


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "FIRST_S", 0.05)
    monkeypatch.setattr(shown, "EVERY_S", 0.2)


def _wait_for(stream: io.StringIO, text: str) -> bool:
    until = time.monotonic() + 20.0
    while time.monotonic() < until and text not in stream.getvalue():
        time.sleep(0.01)
    return text in stream.getvalue()


def test_a_short_command_says_nothing() -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream) as progress:
        progress.add("points", 4).move_to(4)
    assert stream.getvalue() == ""


def test_a_long_one_says_what_is_done_and_left(quick: None) -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream) as progress:
        points = progress.add("points", 1000)
        time.sleep(0.02)
        points.move_to(10)
        assert _wait_for(stream, "points 1 %, about ")
        assert " left" in stream.getvalue()
    after = stream.getvalue()
    time.sleep(0.3)
    assert stream.getvalue() == after, "it ends with the command"


def test_what_was_done_before_says_nothing_about_the_pace(quick: None) -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream) as progress:
        progress.add("points", 100, 90)
        assert _wait_for(stream, "points 90 %\n")
    assert "left" not in stream.getvalue()


def test_where_nothing_is_known_it_still_says_that_it_is_at_work(quick: None) -> None:
    stream = io.StringIO()
    with ProgressDisplay(stream) as progress:
        progress.add("points", 100)
        assert _wait_for(stream, "at work on points for ")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (41.0, "41 s"), (200.0, "3 min"), (3 * 3600.0, "3.0 h")]
)
def test_estimates_are_round(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
