"""Mistakes that Python accepts in a class, and that would be met only while events are handled.

Each function says what is wrong in words that follow "Function 'name': ", or says nothing.
"""

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import inspect as inspect_types

from catchwater.pipeline.functions.entries import EntryState
from catchwater.state.records import is_pydantic

_EVENT = "on_event(self, e, s, ctx)"
_TIMER = "on_timer(self, name, at, s, ctx)"


def loose_fields(record: type) -> Iterator[str]:
    """Names given a value but no type: no fields, so that what is set on them is never kept.

    Constants, by their capitals, methods and what begins with an underscore are left alone.
    """
    bases = [each for each in record.__mro__ if each.__module__ not in _LIBRARIES]
    typed = {name for each in bases for name in vars(each).get("__annotations__", ())}
    for each in bases:
        for name, value in vars(each).items():
            hidden = name.startswith(("_", "model_")) or name.isupper()
            if not (hidden or name in typed or callable(value) or hasattr(value, "__get__")):
                yield name


def foreign_types(record: Any) -> Iterator[tuple[str, str]]:
    """Where a record has a type that no codec of ours knows, and which: ("Trip.file", "Path")."""
    waiting: list[tuple[str, Any]] = [(_name(record), inspect_types.type_info(record))]
    seen: list[Any] = []
    while waiting:
        at, each = waiting.pop()
        match each:
            case inspect_types.CustomType():
                kind = typing.get_origin(each.cls) or each.cls
                if not (is_pydantic(kind) or issubclass(kind, EntryState)):
                    yield at, _name(each.cls)
            case (
                inspect_types.StructType()
                | inspect_types.DataclassType()
                | inspect_types.TypedDictType()
                | inspect_types.NamedTupleType()
            ) if each.cls not in seen:
                seen.append(each.cls)
                name = _name(each.cls)
                waiting += [(f"{name}.{field.name}", field.type) for field in each.fields]
            case inspect_types.Metadata():
                waiting.append((at, each.type))
            case inspect_types.UnionType():
                waiting += [(at, part) for part in each.types]
            case inspect_types.TupleType():
                waiting += [(at, part) for part in each.item_types]
            case inspect_types.DictType():
                waiting += [(at, each.key_type), (at, each.value_type)]
            case _ if hasattr(each, "item_type"):
                waiting.append((at, each.item_type))


def changed_kinds(before: Any, after: Any) -> Iterator[str]:
    """Fields of a fresh state that come back as a plainer collection than they were."""
    for name in getattr(type(before), "__annotations__", ()):
        kinds = [type(getattr(each, name, None)) for each in (before, after)]
        if kinds[0] is not kinds[1] and kinds[1] in (dict, list, set) and issubclass(*kinds):
            yield (
                f"the state's field {name!r} begins as a {kinds[0].__name__}, but is a "
                f"{kinds[1].__name__} when it has been stored: begin with a {kinds[1].__name__}"
            )


def _name(declared: Any) -> str:
    return getattr(declared, "__name__", None) or str(declared)


def handlers(target: Callable[..., Any]) -> Iterator[str]:
    """Handlers that cannot be called as they will be."""
    if isinstance(target, type):
        yield from _made_without_arguments(target)
        instance: Any = object.__new__(target)
        yield from uncallable(instance.on_event, 3, f"write {_EVENT}")
        yield from uncallable(instance.on_timer, 4, f"write {_TIMER}")
    else:
        yield from uncallable(target, 3, "write def f(e, s, ctx)")


def _made_without_arguments(target: type) -> Iterator[str]:
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        yield (
            f"class {target.__name__} must be made without arguments ({error}): every task makes "
            "its own; what it is to know stands in its module"
        )


def uncallable(handler: Callable[..., Any], arguments: int, shape: str) -> Iterator[str]:
    """Why a method of the user's cannot be called with so many arguments."""
    name = handler.__name__
    if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
        yield (
            f"{name} must not be async; calls to the outside are declared by calls= "
            "(docs/functions.md)"
        )
    try:
        inspect.signature(handler).bind(*range(arguments))
    except TypeError as error:
        yield f"{name} cannot be called with its {arguments} arguments ({error}): {shape}"


_LIBRARIES = frozenset({"builtins", "typing", "msgspec", "pydantic.main", "abc"})
