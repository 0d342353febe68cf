"""State that compiled code knows by its address: named tuples of arrays, passed on as one pointer.

Numba passes a named tuple by value, with seven words for each array in it: the agent's loop has some five hundred, and
every call of a function that takes it copied them all. A class marked as a bundle (`decorators.bundle`) is written to
memory once, where Python calls an entry point; from there on compiled code hands on its address, and reads what it
needs of it where it needs it.

A bundle's fields are arrays, other bundles, or what fits a word. They never change while compiled code runs (what is in
the arrays does): so every read of them is marked as one that no store can change. Plain Python knows nothing of this.
"""

import hashlib
from typing import Any

from llvmlite import ir
from numba.core import cgutils, datamodel, types
from numba.core.datamodel.models import OpaqueModel
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AttributeTemplate
from numba.core.typing.typeof import typeof_impl
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, unbox

_Type: Any = types.Type
_OpaqueModel: Any = OpaqueModel
_AttributeTemplate: Any = AttributeTemplate
_typeof_impl: Any = typeof_impl
_NativeValue: Any = NativeValue
_datamodel: Any = datamodel
_infer_getattr: Any = infer_getattr
_lower_getattr_generic: Any = lower_getattr_generic
_unbox: Any = unbox
_cgutils: Any = cgutils
_borrowed: Any = impl_ret_borrowed
_MEMINFO, _PARENT, _ITEMS, _ITEM_BYTES, _DATA, _SHAPE, _STRIDES = range(7)
"""The words of Numba's arrays, in their order."""


class Bundle(_Type):  # type: ignore[misc]
    """The type of a marked class, with these types of its fields."""

    def __init__(self, instance_class: Any, kinds: tuple[Any, ...]) -> None:
        self.instance_class, self.kinds = instance_class, kinds
        self.fields = dict(zip(instance_class._fields, range(len(kinds)), strict=True))
        # Mangled into the names of functions, so it is short; and the same in every process.
        digest = hashlib.sha256(" ".join(map(str, kinds)).encode()).hexdigest()[:12]
        super().__init__(f"{instance_class.__module__}.{instance_class.__qualname__}#{digest}")

    @property
    def key(self) -> Any:
        """What makes two of these the same type."""
        return self.instance_class, self.kinds


def register(instance_class: Any) -> None:
    """From now on compiled code takes this class of named tuples, and those within it, by their address."""

    _typeof_impl.register(instance_class)(_type_of)


def _type_of(value: Any, context: Any) -> Any:
    kinds = tuple(
        _type_of(field, context) if hasattr(field, "_fields") else _typeof_impl(field, context)
        for field in value
    )
    return None if any(kind is None for kind in kinds) else Bundle(type(value), kinds)


_datamodel.register_default(Bundle)(_OpaqueModel)


@_infer_getattr
class _Attributes(_AttributeTemplate):  # type: ignore[misc]
    key = Bundle

    def generic_resolve(self, bundle: Bundle, attribute: str) -> Any:
        """The type of a field."""
        at = bundle.fields.get(attribute)
        return None if at is None else bundle.kinds[at]


def _layout(context: Any, bundle: Bundle) -> Any:
    """How a bundle lies in memory: one field behind the other, bundles within it too."""
    return ir.LiteralStructType(
        [
            _layout(context, kind) if isinstance(kind, Bundle) else context.get_value_type(kind)
            for kind in bundle.kinds
        ]
    )


def _place_of(context: Any, builder: Any, bundle: Bundle, address: Any, at: int) -> Any:
    whole = builder.bitcast(address, _layout(context, bundle).as_pointer())
    return _cgutils.gep_inbounds(builder, whole, 0, at)


def _read(builder: Any, place: Any) -> Any:
    """A word that stays as it is."""
    value = builder.load(place)
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _read_array(context: Any, builder: Any, kind: Any, place: Any) -> Any:
    """An array: its address and extent. It has no owner here, and its items' size is known."""
    value_type = context.get_value_type(kind)
    whole = _cgutils.get_null_value(value_type)
    item_bytes = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    whole = builder.insert_value(whole, context.get_constant(types.intp, item_bytes), _ITEM_BYTES)
    for at in (_ITEMS, _DATA):
        whole = builder.insert_value(whole, _read(builder, _cgutils.gep_inbounds(builder, place, 0, at)), at)
    for at in (_SHAPE, _STRIDES):
        for dimension in range(kind.ndim):
            word = _read(builder, _cgutils.gep_inbounds(builder, place, 0, at, dimension))
            whole = builder.insert_value(whole, word, (at, dimension))
    return whole


@_lower_getattr_generic(Bundle)
def _attribute(context: Any, builder: Any, bundle: Bundle, address: Any, attribute: str) -> Any:
    """A field: the address of a bundle, the words of anything else."""
    at = bundle.fields[attribute]
    kind = bundle.kinds[at]
    place = _place_of(context, builder, bundle, address, at)
    if isinstance(kind, Bundle):
        return builder.bitcast(place, context.get_value_type(kind))
    if isinstance(kind, types.Array):
        return _read_array(context, builder, kind, place)
    return _borrowed(context, builder, kind, _read(builder, place))


@_unbox(Bundle)
def _unbox_bundle(bundle: Bundle, value: Any, c: Any) -> Any:
    """Write it to the caller's stack, from where it is read until the call ends."""
    place = _cgutils.alloca_once(c.builder, _layout(c.context, bundle))
    is_error = _cgutils.alloca_once_value(c.builder, _cgutils.false_bit)
    cleanups: list[Any] = []
    _write(c, bundle, value, place, is_error, cleanups)
    address = c.builder.bitcast(place, c.context.get_value_type(bundle))
    # The optimiser is to forget whence the address is: of memory that it knows, it takes words that never change for
    # those from before they were written.
    hide = ir.InlineAsm(ir.FunctionType(address.type, [address.type]), "", "=r,0,~{memory}", side_effect=True)
    hidden = c.builder.call(hide, [address])

    def clean_up() -> None:
        for clean in reversed(cleanups):
            clean()

    return _NativeValue(hidden, cleanup=clean_up if cleanups else None, is_error=c.builder.load(is_error))


def _write(c: Any, bundle: Bundle, value: Any, place: Any, is_error: Any, cleanups: list[Any]) -> None:
    for at, kind in enumerate(bundle.kinds):
        field = c.pyapi.tuple_getitem(value, at)
        target = _cgutils.gep_inbounds(c.builder, place, 0, at)
        if isinstance(kind, Bundle):
            _write(c, kind, field, target, is_error, cleanups)
            continue
        native = c.unbox(kind, field)
        c.builder.store(native.value, target)
        with c.builder.if_then(native.is_error, likely=False):
            c.builder.store(_cgutils.true_bit, is_error)
        if native.cleanup is not None:
            cleanups.append(native.cleanup)
