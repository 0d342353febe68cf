"""What code depends on: its own source and all that it imports of this package, at any depth, as one hash.

Compiled code on disk and finished points of a sweep are kept under such a hash. It is made of file contents, found by
walking the package from its root, so a module counts wherever it lies; a module that is not imported does not count,
and a change of a page recompiles nothing.

Imports are read from the text, those inside functions and those for type checkers too. What looks like an import but
is none, as in a docstring, counts as well: one file too many costs a compilation, one too few runs stale code.
"""

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent

# Expressions over the text: parsing a hundred files would take longer than loading what was compiled from them.
_FROM = re.compile(r"\bfrom[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|(?:[^\n\\]|\\\n)*)")
_IMPORT = re.compile(r"\bimport[ \t]+((?:[^\n\\(]|\\\n)+)")
_QUOTED = re.compile(r"""["']([A-Za-z_]\w*(?:\.\w+)+)["']""")
_NAME = re.compile(r"[\w.]+")


class SourceTree:
    """A package on disk; each file is read once, so a tree shows the sources as they were then."""

    def __init__(self, package: Path = _PACKAGE) -> None:
        self._package = package
        self._files = dict(_modules(package))
        self._module_at = {path: module for module, path in self._files.items()}
        self._texts: dict[Path, bytes] = {}
        self._imports: dict[Path, frozenset[Path]] = {}
        self._closures: dict[Path, frozenset[Path]] = {}

    def closure(self, source: Path) -> frozenset[Path]:
        """The file and all files of the package that it imports, at any depth. The file may lie elsewhere."""
        if source not in self._closures:
            found: set[Path] = set()
            waiting = [source]
            while waiting:
                path = waiting.pop()
                if path not in found:
                    found.add(path)
                    waiting.extend(self._imported(path))
            self._closures[source] = frozenset(found)
        return self._closures[source]

    def key(self, source: Path) -> str:
        """A hash of `closure(source)`: names within the package, and contents."""
        digest = hashlib.sha256()
        for name, path in sorted(
            (self._module_at.get(path, path.name), path) for path in self.closure(source)
        ):
            digest.update(f"{name} {hashlib.sha256(self._read(path)).hexdigest()}\n".encode())
        return digest.hexdigest()

    def holds(self, module: str) -> bool:
        """True for a module of the package."""
        return module in self._files

    def file_of(self, module: str) -> Path:
        """Where a module of the package lies."""
        return self._files[module]

    def _read(self, path: Path) -> bytes:
        if path not in self._texts:
            self._texts[path] = path.read_bytes()
        return self._texts[path]

    def _imported(self, source: Path) -> frozenset[Path]:
        if source not in self._imports:
            module = self._module_at.get(source, "")
            names = {module, *_imported_names(self._read(source).decode(), _package_of(module, source))}
            self._imports[source] = frozenset(
                self._files[name] for name in _with_parents(names) & self._files.keys()
            )
        return self._imports[source]


def _modules(package: Path) -> Iterator[tuple[str, Path]]:
    for folder, folders, files in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        parts = Path(folder).relative_to(package.parent).parts
        for name in files:
            if name.endswith(".py"):
                stem = () if name == "__init__.py" else (name.removesuffix(".py"),)
                yield ".".join(parts + stem), Path(folder, name)


def _package_of(module: str, source: Path) -> str:
    return module if source.name == "__init__.py" else module.rpartition(".")[0]


def _imported_names(text: str, package: str) -> Iterator[str]:
    """Every dotted name that the text may import, or import from."""
    for dots, stem, what in _FROM.findall(text):
        origin = stem
        if dots:
            above = package.split(".")[: len(package.split(".")) - len(dots) + 1]
            origin = ".".join([*above, stem] if stem else above)
        yield origin
        for name in _NAME.findall(what):
            yield f"{origin}.{name}"
    for what in _IMPORT.findall(text):
        yield from _NAME.findall(what)
    yield from _QUOTED.findall(text)


def _with_parents(names: set[str]) -> set[str]:
    """The names, and the packages that are imported on the way to them."""
    found: set[str] = set()
    for name in names:
        while name and name not in found:
            found.add(name)
            name = name.rpartition(".")[0]
    return found


@functools.cache
def tree() -> SourceTree:
    """This package, as it was when this process first asked."""
    return SourceTree()
