"""A fingerprint of a program's code: unchanged as long as nothing changed that a fold's result could depend on.

It covers what runs: the byte code of a function, of the functions and classes of the same program that it refers to, and
plain values that they refer to. Comments, docstrings and line numbers do not count. Pure.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

_PLAIN = (int, float, str, bytes, bool, complex, type(None))


def fingerprint_of(things: Iterable[Any]) -> str:
    """Return the fingerprint of functions, classes and plain values, and of everything that they refer to."""
    digest = hashlib.blake2b(digest_size=12)
    digest.update(sys.implementation.cache_tag.encode() if sys.implementation.cache_tag else b"")
    seen: set[int] = set()
    for thing in things:
        _add(thing, digest.update, seen, _root_of(thing))
    return digest.hexdigest()


def _root_of(thing: Any) -> str:
    """Return the program that a function belongs to: the first part of its module's name."""
    return str(getattr(thing, "__module__", "") or "").partition(".")[0]


def _add(thing: Any, update: Callable[[bytes], None], seen: set[int], root: str) -> None:
    if id(thing) in seen:
        return
    if isinstance(thing, types.FunctionType):
        seen.add(id(thing))
        update(b"function")
        _add_code(thing.__code__, update)
        for value in (thing.__defaults__, thing.__kwdefaults__, thing.__closure__):
            _add_value(value, update, seen, root)
        for name in _names(thing.__code__):
            if name in thing.__globals__:
                _add_value(thing.__globals__[name], update, seen, root)
    elif isinstance(thing, type):
        seen.add(id(thing))
        update(f"class {thing.__qualname__}".encode())
        if dataclasses.is_dataclass(thing):
            for field in dataclasses.fields(thing):
                update(f"{field.name}: {field.type}".encode())
                _add_value(field.default, update, seen, root)
        if issubclass(thing, enum.Enum):
            update(repr([(member.name, member.value) for member in thing]).encode())
        for base in thing.__mro__:
            if _root_of(base) == root:
                for value in vars(base).values():
                    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                    if isinstance(inner, types.FunctionType) and inner.__code__.co_filename != "<string>":
                        _add(inner, update, seen, root)
    else:
        _add_value(thing, update, seen, root)


def _add_value(value: Any, update: Callable[[bytes], None], seen: set[int], root: str) -> None:
    if isinstance(value, _PLAIN):
        update(repr(value).encode())
    elif isinstance(value, (tuple, list)):
        update(f"{type(value).__name__} {len(value)}".encode())
        for item in value:
            _add_value(item, update, seen, root)
    elif isinstance(value, dict):
        for key, item in value.items():
            _add_value(key, update, seen, root)
            _add_value(item, update, seen, root)
    elif isinstance(value, types.CellType):
        try:
            _add_value(value.cell_contents, update, seen, root)
        except ValueError:  # the cell is not set yet
            update(b"empty")
    elif isinstance(value, (types.FunctionType, type)) and _root_of(value) == root:
        _add(value, update, seen, root)


def _add_code(code: types.CodeType, update: Callable[[bytes], None]) -> None:
    update(code.co_code)
    update(repr((code.co_names, code.co_varnames)).encode())
    docstring = code.co_consts[0] if code.co_consts and isinstance(code.co_consts[0], str) else None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _add_code(constant, update)
        elif constant is not docstring:
            update(repr(constant).encode())


def _names(code: types.CodeType) -> list[str]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return sorted({*code.co_names, *(name for part in inner for name in _names(part))})
