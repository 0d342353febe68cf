"""Compiled code without the compiler's repeated work: what only compiled code calls gets machine code once.

Numba optimises every function, translates it to machine code and loads that, together with all that it calls; then
again as part of each of its callers, up to the entry point. In a program of 170 small functions that was more than
half of the time to compile. A function that only compiled code calls needs none of it: here it stays intermediate
code, and is optimised once, in the entry point that it ends up in, where the optimiser sees the whole.

A function that Python calls too has two faces: its own, and a twin that compiled callers use.

Numba has one step that can change what a program does: it removes "dead" code by an analysis that does not see through
named tuples, so a store into an array that is reached through one can be taken for dead. It takes that step where it
has inlined an overload, or a closure. Both are refused here, while compiling: no such function gets machine code.
"""

from typing import Any

import numba
from llvmlite import binding
from numba.core import codegen, compiler, errors, ir, registry, typed_passes, types, untyped_passes
from numba.core import compiler_machinery as machinery
from numba.extending import overload

_njit: Any = numba.njit
_overload: Any = overload
_register_pass: Any = machinery.register_pass

# Numba's stubs know none of what follows.
_JITCodeLibrary: Any = codegen.JITCodeLibrary
_Compiler: Any = compiler.Compiler
_Dispatcher: Any = registry.CPUDispatcher
_EXTERNAL: Any = binding.Linkage.external
_InlineOverloads: Any = typed_passes.InlineOverloads
_InlineClosures: Any = untyped_passes.InlineClosureLikes
_STORES = (ir.SetItem, ir.StaticSetItem, ir.SetAttr)


@_register_pass(mutates_CFG=True, analysis_only=False)
class _RefuseInlinedOverloads(_InlineOverloads):  # type: ignore[misc]
    """Numba's step, which must find nothing to do. Nor may a function call itself, at any depth: parts are linked
    before such a call has a target, and it would jump to nowhere."""

    _name = "refuse_inlined_overloads"

    def run_pass(self, state: Any) -> bool:
        if any(isinstance(kind, types.RecursiveCall) for kind in state.typemap.values()):
            raise errors.UnsupportedError(f"{state.func_id.func_qualname} is part of a recursion")
        return bool(super().run_pass(state))

    def _run_inliner(self, state: Any, *_: Any) -> bool:
        raise errors.UnsupportedError(
            f"{state.func_id.func_qualname} uses an inlined overload, with which Numba may drop a store; "
            "use `compiled_form_of`, or an intrinsic behind a plain function"
        )


@_register_pass(mutates_CFG=True, analysis_only=False)
class _KeepStores(_InlineClosures):  # type: ignore[misc]
    """Numba's step, which must leave every store where it is."""

    _name = "inline_closures_and_keep_stores"

    def run_pass(self, state: Any) -> bool:
        before = _stores(state)
        changed = super().run_pass(state)
        if _stores(state) < before:
            raise errors.UnsupportedError(
                f"Numba dropped a store in {state.func_id.func_qualname} when it inlined a closure; "
                "use a function of the module"
            )
        return bool(changed)


def _stores(state: Any) -> int:
    return sum(isinstance(line, _STORES) for block in state.func_ir.blocks.values() for line in block.body)


_GUARDED = {_InlineOverloads: _RefuseInlinedOverloads, _InlineClosures: _KeepStores}


class _GuardedCompiler(_Compiler):  # type: ignore[misc]
    """Numba's compiler without the steps that can lose a store."""

    _library: Any = None
    """What the code becomes; None: what Numba makes of it."""

    def define_pipelines(self) -> Any:
        if self._library is not None:
            self.state.library = self._library(
                self.state.targetctx.codegen(), self.state.func_id.func_qualname
            )
            self.state.library.enable_object_caching()
        pipelines = super().define_pipelines()
        for pipeline in pipelines:
            found = {step for step, _ in pipeline.passes} & set(_GUARDED)
            if found != set(_GUARDED):
                raise errors.UnsupportedError(f"this version of Numba ({numba.__version__}) has other steps")
            pipeline.passes = [(_GUARDED.get(step, step), what) for step, what in pipeline.passes]
            pipeline.finalize()
        return pipelines


def njit(**options: Any) -> Any:
    """Numba's `njit`, guarded; the only one that this project uses."""
    return _njit(pipeline_class=_GuardedCompiler, **options)


def compiled_form_of(function: Any, **options: Any) -> Any:
    """What compiled code calls instead of a plain Python function; LLVM inlines it, Numba does not."""
    return _overload(function, jit_options={"forceinline": True, **options})


class _NoEnvironments:
    """Numba's code generator for a part, which has no place in memory yet where a pointer to its environment could go.

    An environment serves what prints, or raises with an argument that is known only then; no part does.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Nothing to set."""


class _Part(_JITCodeLibrary):  # type: ignore[misc]
    """The code of one function that has no machine code of its own."""

    _shared_module: Any

    @property
    def codegen(self) -> _NoEnvironments:
        return _NoEnvironments(self._codegen)

    def finalize(self) -> None:
        """Nothing to optimise, nothing to load: that is done where it ends up."""
        self._raise_if_finalized()
        for library in self._linking_libraries:
            self._reload_init.update(library._reload_init)
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """None: Python can't call it."""
        self._ensure_finalized()
        return 0

    def _get_module_for_linking(self) -> Any:
        """This function and all that it needs, each once, for a library that gets machine code."""
        self._ensure_finalized()
        if self._shared_module is None:
            whole = _to_share(self._final_module)
            for library in self._needs():
                if isinstance(library, _Part):
                    whole.link_in(_to_share(library._final_module))
                else:
                    whole.link_in(library._get_module_for_linking(), preserve=True)
            self._shared_module = whole
        return self._shared_module

    def _needs(self) -> list[Any]:
        """All libraries that this one calls, at any depth."""
        found: dict[Any, None] = {}
        waiting = list(self._linking_libraries)
        while waiting:
            library = waiting.pop()
            if library not in found:
                found[library] = None
                if isinstance(library, _Part):
                    waiting.extend(library._linking_libraries)
        return list(found)


def _to_share(module: Any) -> Any:
    """A copy whose functions may also be defined in what it is linked with."""
    module = module.clone()
    for function in module.functions:
        if not function.is_declaration and function.linkage == _EXTERNAL:
            function.linkage = "linkonce_odr"
    return module


class _Program(_JITCodeLibrary):  # type: ignore[misc]
    """The code of an entry point, with all of its parts. It is optimised once.

    Numba optimises twice, the first time to bring reference counts together; this project's code has none.
    """

    def _optimize_final_module(self) -> None:
        passes, builder = self._codegen._module_pass_manager()
        with self._recorded_timings.record("Module passes", builder):
            passes.run(self._final_module, builder)


class _LeanProgram(_Program):
    """The same for a program whose parts are called where they are long: the compiler decides, not we.

    A loop that waits for packets gains nothing from parts that are copied to every place of their use, and takes three
    times as long to compile with them.
    """

    _final_module: Any

    def _optimize_final_module(self) -> None:
        lean = binding.parse_assembly(str(self._final_module).replace("alwaysinline", "inlinehint"))
        lean.name = self._final_module.name
        self._final_module = lean
        super()._optimize_final_module()


class _EntryCompiler(_GuardedCompiler):
    """Numba's compiler, its result a program."""

    _library = _Program


class _LeanCompiler(_GuardedCompiler):
    """Numba's compiler, its result a lean program."""

    _library = _LeanProgram


class _PartCompiler(_GuardedCompiler):
    """Numba's compiler, its result a part."""

    _library = _Part


class _PartDispatcher(_Dispatcher):  # type: ignore[misc]
    """A part in Python's hands: there is nothing to jump to, so a call must not try."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.py_func.__qualname__} is for compiled code alone; Python can't call it")


def part(function: Any, **options: Any) -> Any:
    """A compiled function that compiled code alone calls."""
    dispatcher = _njit(
        pipeline_class=_PartCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options
    )(function)
    if hasattr(dispatcher, "py_func"):
        dispatcher.__class__ = _PartDispatcher
    return dispatcher


def entry(function: Any, *, lean: bool = False, **options: Any) -> Any:
    """A compiled function for Python, kept on disk; compiled callers get a part instead."""
    compiler = _LeanCompiler if lean else _EntryCompiler
    dispatcher = _njit(pipeline_class=compiler, cache=True, **options)(function)
    if hasattr(dispatcher, "py_func"):
        twin = part(function, **options)
        dispatcher.get_call_template = twin.get_call_template
        dispatcher.get_overload = twin.get_overload
    return dispatcher
