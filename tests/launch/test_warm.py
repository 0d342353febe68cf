import pytest

from paceline.errors import UserError
from paceline.launch import warm


def test_a_part_is_compiled_or_loaded_by_a_process_of_its_own() -> None:
    warming = warm.Warming(("planner",))
    warming.wait()
    assert [process.returncode for process in warming._processes.values()] == [0]


def test_what_does_not_compile_is_named_and_the_rest_is_ended() -> None:
    warming = warm.Warming(("nonsense", "planner"))
    with pytest.raises(UserError, match="the nonsense could not be compiled"):
        warming.wait()
    assert all(process.returncode is not None for process in warming._processes.values())


def test_an_unknown_part_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert warm.main(["agent", "nonsense"]) == 2
    assert "no 'nonsense' to compile; known: agent, switch, worker, planner" in capsys.readouterr().err
