"""Errors are told apart by their types and fields; no source outside of the backend looks into the text of one."""

import ast
from pathlib import Path

import paceline
from paceline.errors import JobError, SettingError, UserError

PACKAGE = Path(paceline.__file__).resolve().parent
_TEXTS = {"args", "message", "place", "reason", "strerror"}
_LOOKS = {"startswith", "endswith", "find", "index", "count", "match", "search", "fullmatch", "findall"}


def test_a_setting_is_found_by_its_key() -> None:
    error = SettingError("is too long", key=("faults", "slow"))
    assert isinstance(error, UserError)
    assert (error.key, str(error)) == (("faults", "slow"), "faults.slow: is too long")


def test_a_job_is_found_by_its_name() -> None:
    error = JobError("is too large", job="it's")
    assert isinstance(error, UserError)
    assert (error.job, str(error)) == ("it's", 'job "it\'s": is too large')


def _reads_text(node: ast.AST, name: str) -> bool:
    """Does an expression hold the text of the error with this name?"""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and getattr(part.func, "id", "") in ("str", "repr"):
            if any(getattr(given, "id", "") == name for given in part.args):
                return True
        elif (
            isinstance(part, ast.Attribute) and getattr(part.value, "id", "") == name and part.attr in _TEXTS
        ):
            return True
    return False


def decisions_by_text(source: str) -> list[int]:
    """Lines where an error that was caught is told apart by its text."""
    found = []
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        for node in ast.walk(handler):
            looks = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _LOOKS
            if (looks or isinstance(node, ast.Compare)) and _reads_text(node, handler.name):
                found.append(node.lineno)
    return found


def test_decisions_by_text_are_found() -> None:
    assert decisions_by_text("try: f()\nexcept OSError as e:\n if 'no' in str(e): g()") == [3]
    assert decisions_by_text("try: f()\nexcept X as e:\n if PLACE.match(e.place): g()") == [3]
    assert decisions_by_text("try: f()\nexcept X as e:\n if e.errno == 3: g(str(e))") == []


def test_no_source_decides_by_an_errors_text() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "torch" in path.relative_to(PACKAGE).parts:
            continue
        assert decisions_by_text(path.read_text(encoding="utf-8")) == [], path
