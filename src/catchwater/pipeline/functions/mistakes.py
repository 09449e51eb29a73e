"""Mistakes that Python accepts in a class, and that would be met only while events are handled.

Each function says what is wrong in words that follow "Function 'name': ", or says nothing.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

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


def handlers(target: Callable[..., Any]) -> Iterator[str]:
    """Handlers that cannot be called as they will be."""
    if isinstance(target, type):
        instance: Any = object.__new__(target)
        yield from _handler(instance.on_event, 3, f"write {_EVENT}")
        yield from _handler(instance.on_timer, 4, f"write {_TIMER}")
    else:
        yield from _handler(target, 3, "write def f(e, s, ctx)")


def _handler(handler: Callable[..., Any], arguments: int, shape: str) -> Iterator[str]:
    name = handler.__name__
    if inspect.iscoroutinefunction(handler) or inspect.isasyncgenfunction(handler):
        yield f"{name} must not be async; for calls to the outside there are calls= (docs/calls.md)"
    try:
        inspect.signature(handler).bind(*range(arguments))
    except TypeError as error:
        yield f"{name} cannot be called with its {arguments} arguments ({error}): {shape}"


_LIBRARIES = frozenset({"builtins", "typing", "msgspec", "pydantic.main", "abc"})
