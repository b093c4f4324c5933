"""Values that the code writes, read from its syntax trees where no object holds them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.repo.tree import module_name, sources


@cache
def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module of the package."""
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(package: str = "headwater", *, testing: bool = False) -> Iterator[tuple[str, ast.Module]]:
    """The modules below a package with their names; the test kit is left out unless it is asked for."""
    for path in sources():
        name = module_name(path)
        if not testing and name.startswith("headwater.testing"):
            continue
        if name == package or name.startswith(f"{package}."):
            yield name, tree_of(path)


def function_tree(function: Callable[..., Any]) -> ast.FunctionDef:
    """The syntax tree of a function, a method, a property or a click command."""
    function = getattr(function, "callback", None) or getattr(function, "fget", None) or function
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
    found = ast.parse(source).body[0]
    assert isinstance(found, ast.FunctionDef), function
    return found


def text_of(node: ast.AST, names: dict[str, Any] | None = None) -> str | None:
    """The text that an expression is: a literal, or the name of a constant of the module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and isinstance((names or {}).get(node.id), str):
        return str((names or {})[node.id])
    return None


class _Keys(ast.NodeVisitor):
    """Collects the keys of outermost dict literals, of what is merged into them, and of `name["key"] = value`."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self.found: set[str] = set()

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                self.visit(value)
            elif (text := text_of(key, self._names)) is not None:
                self.found.add(text)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        pass

    def visit_Subscript(self, node: ast.Subscript) -> None:
        text = text_of(node.slice, self._names)
        if isinstance(node.ctx, ast.Store) and text is not None:
            self.found.add(text)


def keys_written(*functions: Callable[..., Any], into: str = "") -> set[str]:
    """The keys of the dicts that functions make; `into`: of those only that are put into variables of these names."""
    found: set[str] = set()
    for function in functions:
        plain = getattr(function, "callback", None) or getattr(function, "fget", None) or function
        keys = _Keys(inspect.unwrap(plain).__globals__)
        for node in _of_names(function_tree(function), into.split()):
            keys.visit(node)
        found |= keys.found
    return found


def keys_put(tree: ast.FunctionDef, variable: str) -> set[str]:
    """The keys of the dicts that a function puts into a variable."""
    keys = _Keys({})
    for node in _of_names(tree, [variable]):
        keys.visit(node)
    return keys.found


def _of_names(tree: ast.FunctionDef, names: list[str]) -> Iterator[ast.AST]:
    if not names:
        yield from tree.body
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                own = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(own, ast.Name) and own.id in names:
                    yield from (
                        node.target if isinstance(node, ast.AugAssign) else target,
                        *filter(None, [node.value]),
                    )


def keys_read(function: Callable[..., Any], variable: str) -> set[str]:
    """The keys that a function asks a variable for: `v["key"]`, `v.get("key")` and `"key" in v`."""
    return keys_asked(function_tree(function), variable)


def keys_asked(tree: ast.AST, variable: str) -> set[str]:
    """The same of a whole tree."""
    found: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=key) if name == variable:
                found.append(key)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="get"), args=[key, *_]) if (
                name == variable
            ):
                found.append(key)
            case ast.Compare(left=key, ops=[ast.In()], comparators=[ast.Name(id=name)]) if name == variable:
                found.append(key)
    return {text for node in found if (text := text_of(node)) is not None}


def keys_beside(function: Callable[..., Any], key: str) -> set[str]:
    """The keys of the dict literal in a function that has a key."""
    for node in ast.walk(function_tree(function)):
        if isinstance(node, ast.Dict):
            found = {text for own in node.keys if own is not None and (text := text_of(own)) is not None}
            if key in found:
                return found
    return set()


def keyword(function: Callable[..., Any], name: str) -> set[str]:
    """The keys of the dicts that a function passes under a keyword."""
    keys = _Keys(inspect.unwrap(function).__globals__)
    for node in ast.walk(function_tree(function)):
        if isinstance(node, ast.keyword) and node.arg == name:
            keys.visit(node.value)
    return keys.found


def calls(called: str, package: str = "headwater") -> Iterator[tuple[str, ast.Call]]:
    """Every call of a function or method of a name, with the module that it is in."""
    for module, call in _calls():
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == called and f"{module}.".startswith(f"{package}."):
            yield module, call


@cache
def _calls() -> tuple[tuple[str, ast.Call], ...]:
    return tuple(
        (module, node) for module, tree in modules() for node in ast.walk(tree) if isinstance(node, ast.Call)
    )


def argument(module: str, call: ast.Call, place: int) -> str | None:
    """The text that is passed at a place: a literal or a constant of the module; None if it is neither."""
    return text_of(call.args[place], vars(import_module(module))) if len(call.args) > place else None


@cache
def texts(package: str = "headwater", *, leave_out: str = "") -> frozenset[str]:
    """Every text in the code that is no docstring, the constant parts of f-strings among them; a module can be left out."""
    return frozenset(
        text
        for module, found in _texts()
        if f"{module}.".startswith(f"{package}.") and module != leave_out
        for text in found
    )


@cache
def _texts() -> tuple[tuple[str, frozenset[str]], ...]:
    return tuple((module, frozenset(_of_module(tree))) for module, tree in modules())


def _of_module(tree: ast.Module) -> Iterator[str]:
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
