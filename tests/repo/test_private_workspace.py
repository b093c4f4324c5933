"""Tests, benchmarks and examples reach into no private attribute of a workspace: `headwater.testing.inspect_workspace` has what they need."""

import ast
from collections.abc import Iterator

import pytest

from tests.repo.tree import ROOT, files, shown

NAMES = {"ws", "workspace", "shop"}
"""Names that are workspaces wherever they are not bound to something else in the same file."""
FOLDERS = {"tests", "benchmarks", "examples"}


def opens(node: ast.expr | None) -> bool:
    """Whether an expression is a call of `hw.open`, or of `open` with the signature of a workspace."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="hw" | "headwater"), attr="open")):
            return True
    return False


def is_workspace_type(node: ast.expr | None) -> bool:
    """Whether an annotation is `Workspace` or `hw.Workspace`."""
    match node:
        case ast.Name(id="Workspace") | ast.Attribute(attr="Workspace") | ast.Constant(value="Workspace"):
            return True
    return False


def workspace_names(tree: ast.Module) -> set[str]:
    """The names and attributes that a file binds to workspaces, by `hw.open` or by an annotation."""
    found = set(NAMES)
    for node in ast.walk(tree):
        match node:
            case ast.withitem(context_expr=opened, optional_vars=ast.Name(id=name)) if opens(opened):
                found.add(name)
            case ast.Assign(value=opened, targets=targets) if opens(opened):
                found |= {ast.unparse(target) for target in targets}
            case ast.arg(arg=name, annotation=kind) if is_workspace_type(kind):
                found.add(name)
            case ast.AnnAssign(target=target, annotation=kind) if is_workspace_type(kind):
                name = ast.unparse(target)
                found |= {name, f"self.{name}"}
    return found | {f"self.{name}" for name in NAMES}


def is_inspection(node: ast.expr) -> bool:
    """Whether an expression starts with `inspect_workspace(...)`."""
    while True:
        match node:
            case ast.Call(func=ast.Name(id="inspect_workspace")):
                return True
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return False


def private_accesses(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each access to a private attribute of a workspace or of what its inspection returns, with its line."""
    names = workspace_names(tree)

    def owns(node: ast.expr) -> bool:
        return opens(node) or is_inspection(node) or ast.unparse(node) in names

    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=owner, attr=name) if name.startswith("_") and not name.endswith("__"):
                if owns(owner):
                    yield node.lineno, ast.unparse(node)
            case ast.Call(args=[owner, ast.Constant(value=str(name)), *_]) if name.startswith("_"):
                if owns(owner):
                    yield node.lineno, ast.unparse(node)


def test_no_private_attribute_of_a_workspace_is_used() -> None:
    wrong = [
        f"{shown(path)}:{line}: {code}: use headwater.testing.inspect_workspace"
        for path in files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in FOLDERS
        for line, code in private_accesses(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "ws._views.store",
        "self.ws._supervisor",
        "hw.open('shop')._views",
        "with hw.open('shop') as again:\n    again._views.run()",
        "opened = hw.open('shop')\nopened._figures()",
        "def f(other: hw.Workspace): other._clock",
        "class A:\n    held: Workspace\n    def f(self): self.held._views",
        "inspect_workspace(ws).sources.runners._running['a']",
        "monkeypatch.setattr(ws, '_views', None)",
        "getattr(ws, '_views')",
    ],
)
def test_a_private_access_is_found(code: str) -> None:
    assert [line for line, _ in private_accesses(ast.parse(code))]


@pytest.mark.parametrize(
    "code", ["ws.__enter__()", "ws.view('v')._name", "topic._log", "inspect_workspace(ws).store"]
)
def test_other_accesses_are_not(code: str) -> None:
    assert not list(private_accesses(ast.parse(code)))
