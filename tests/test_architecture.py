"""The page of the architecture tells the truth: its map is the tree, and the names on its walks are in the code."""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from paceline.describe import PACKAGE, first_sentence, sections, tree
from paceline.generated import rewritten
from tests.docs.pages import ROOT

PAGE = ROOT / "docs/ARCHITECTURE.md"


def _walks() -> list[tuple[str, str]]:
    """The steps of the page's walks: a module, and a name in it."""
    rows = re.findall(
        r"^\| [^|]+ \| `([\w/]+\.py)` \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 20
    return rows


def _listed() -> set[str]:
    """Every file on the page's map."""
    found, rooms = set(), [""]
    text = PAGE.read_text(encoding="utf-8").partition("<!-- generated: map -->")[2].partition("```\n")[2]
    for line in text.partition("```")[0].splitlines():
        if not line.strip():
            continue
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        rooms[depth + 1 :] = [rooms[depth] + name] if name.endswith("/") else []
        found.add(rooms[depth] + (f"{name}__init__.py" if name.endswith("/") else name))
    return found


def test_the_map_is_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert rewritten(page, sections()) == page, "run `make docs`"


def test_the_map_and_the_tree_have_the_same_modules() -> None:
    there = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")} - {"__init__.py"}
    assert _listed() == there


def test_no_room_of_tests_is_passed_over(request: pytest.FixtureRequest) -> None:
    passed_over = request.config.getini("norecursedirs")
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    names = {part for folder in folders for part in folder.relative_to(ROOT).parts}
    assert [name for name in names if any(fnmatch(name, pattern) for pattern in passed_over)] == []


def test_every_room_and_module_says_what_it_is() -> None:
    assert [name for _, name, meaning in tree() if not meaning] == []


def test_a_room_lists_its_modules_and_then_its_rooms(tmp_path: Path) -> None:
    for name in ("b.py", "a/__init__.py", "a/z.py", "not_a_room/x.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'"""What {name} is. And more."""\n')
    assert list(tree(tmp_path)) == [
        (0, "b.py", "What b.py is"),
        (0, "a/", "What a/__init__.py is"),
        (1, "z.py", "What a/z.py is"),
    ]
    assert first_sentence(tmp_path / "b.py") == "What b.py is"


@pytest.mark.parametrize(("module", "name"), _walks())
def test_walks_go_through_names_that_exist(module: str, name: str) -> None:
    text = (PACKAGE / module).read_text(encoding="utf-8")
    assert re.search(rf"^(?:class|def|    def) {name}\b", text, re.MULTILINE), f"{module} has no {name}"


@functools.cache
def _classes() -> list[ast.ClassDef]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_no_class_has_the_name_of_another() -> None:
    assert [name for name, times in Counter(node.name for node in _classes()).items() if times > 1] == []


def test_no_class_is_above_more_than_one_of_our_own() -> None:
    bases = {node.name: [ast.unparse(base).split(".")[-1] for base in node.bases] for node in _classes()}

    def height(name: str) -> int:
        return 1 + max((height(base) for base in bases[name] if base in bases), default=-1)

    assert [name for name in bases if height(name) > 1] == []


KERNEL_RECORDS = {"MMSGHDR", "IOVEC", "SOCKADDR", "CMSG", "CMSGS", "POLLFD"}
"""The kernel's own, which its manual explains."""


def _fields() -> Iterator[tuple[str, str, str]]:
    """Record, field and the line that declares it, of every record that the core or a live loop keeps."""
    for path in sorted([*PACKAGE.glob("core/**/*.py"), *PACKAGE.glob("live/**/*.py")]):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
                continue
            target, call = node.targets[0], node.value
            if not (isinstance(target, ast.Name) and ast.unparse(call.func) == "np.dtype"):
                continue
            if target.id in KERNEL_RECORDS or not isinstance(call.args[0], ast.List):
                continue
            for field in call.args[0].elts:
                assert isinstance(field, ast.Tuple)
                yield f"{path.stem}.{target.id}", ast.unparse(field.elts[0]), lines[field.lineno - 1]


def test_every_field_of_a_record_is_explained() -> None:
    fields = list(_fields())
    assert len(fields) > 300
    assert [(record, name) for record, name, line in fields if "  # " not in line] == []
