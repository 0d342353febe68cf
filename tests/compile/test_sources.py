"""A key changes with every source that code depends on, wherever it lies, and with no other."""

import ast
import shutil
from pathlib import Path

import paceline
from paceline.compile.sources import SourceTree, _imported_names, _modules
from paceline.experiments import sweep
from paceline.experiments.esa import points as esa_points
from paceline.experiments.joint import points as joint_points
from paceline.experiments.sa_atp import points as sa_atp_points
from paceline.experiments.sjf_bco import points as sjf_bco_points
from paceline.live.agent import loop as agent_loop
from paceline.live.switch import shard
from paceline.schedule import kernels
from paceline.sim.engine import loop as engine

PACKAGE = Path(paceline.__file__).resolve().parent
MODULES = dict(_modules(PACKAGE))
PROGRAMS = [engine, agent_loop, shard, kernels, esa_points, sa_atp_points, sjf_bco_points, joint_points]
"""Compiled programs and experiments."""


def _needed(module: str) -> set[str]:
    """All modules of the package that a module imports, by Python's own parser."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in MODULES and name not in found:
            found.add(name)
            waiting += [name.rpartition(".")[0], *_parsed_imports(name)]
    return found


def _parsed_imports(module: str) -> list[str]:
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    names = []
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            names += [origin, *(f"{origin}.{alias.name}" for alias in node.names)]
    return names


def test_every_import_is_seen() -> None:
    for module, path in MODULES.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        seen = set(_imported_names(path.read_text(encoding="utf-8"), package))
        assert not {name for name in _parsed_imports(module) if name in MODULES} - seen, module


def test_a_key_changes_with_each_source_below_and_with_no_other(tmp_path: Path) -> None:
    copy = tmp_path / "paceline"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    copies = {module: copy / path.relative_to(PACKAGE) for module, path in MODULES.items()}
    names = [program.__name__ for program in PROGRAMS]
    whole = SourceTree(copy)
    for name in names:
        needed = _needed(name)
        assert {name, "paceline"} < needed
        assert whole.closure(copies[name]) >= {copies[module] for module in needed}
    before = {name: whole.key(copies[name]) for name in names}
    for changed in copies.values():
        text = changed.read_bytes()
        changed.write_bytes(text + b"# another\n")
        # One tree for all programs: reading it is what takes the time.
        after = SourceTree(copy)
        for name in names:
            differs = after.key(copies[name]) != before[name]
            assert differs == (changed in whole.closure(copies[name])), (name, changed)
        changed.write_bytes(text)
    after = SourceTree(copy)
    assert {name: after.key(copies[name]) for name in names} == before


def test_what_is_shown_to_people_recompiles_nothing() -> None:
    shown = ("commands", "report", "page", "figures", "describe")
    for program in PROGRAMS:
        for path in SourceTree().closure(MODULES[program.__name__]):
            assert not any(word in str(path.relative_to(PACKAGE)) for word in shown), (program, path)


def test_an_experiment_depends_on_the_rule_of_priorities() -> None:
    closure = SourceTree().closure(MODULES[esa_points.__name__])
    assert {PACKAGE / "core/priority.py", MODULES[engine.__name__]} <= closure
    keys = {sweep.sources_hash(module.run_point) for module in (esa_points, sa_atp_points, sjf_bco_points)}
    assert len(keys) == 3


SCENE = {
    "__init__.py": "",
    "top.py": "from .room import (  # of one\n    near,\n    other as another,\n)\n",
    "room/__init__.py": "",
    "room/near.py": "def f():\n    from .. import far; return far\n",
    "room/other.py": "import own.deep.deeper as d, \\\n    os\n",
    "far.py": 'import importlib\nimportlib.import_module("own.named")\n',
    "named.py": "",
    "deep/__init__.py": "",
    "deep/deeper.py": "if TYPE_CHECKING: from own import typed\n",
    "typed.py": "",
    "apart.py": "from own import top\n",
}


def test_imports_of_every_form_count(tmp_path: Path) -> None:
    for name, text in SCENE.items():
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text(text)
    package = tmp_path / "own"
    closure = {str(path.relative_to(package)) for path in SourceTree(package).closure(package / "top.py")}
    assert closure == set(SCENE) - {"apart.py"}
    outside = tmp_path / "script.py"
    outside.write_text("import own.typed\n")
    assert SourceTree(package).closure(outside) == {outside, package / "__init__.py", package / "typed.py"}


def test_a_module_that_moves_changes_the_key(tmp_path: Path) -> None:
    package = tmp_path / "own"
    for folder in ("a", "b"):
        (package / folder).mkdir(parents=True)
    (package / "top.py").write_text("from own.a import x\nfrom own.b import x\n")
    (package / "a" / "x.py").write_text("")
    before = SourceTree(package).key(package / "top.py")
    (package / "a" / "x.py").rename(package / "b" / "x.py")
    assert SourceTree(package).key(package / "top.py") != before
