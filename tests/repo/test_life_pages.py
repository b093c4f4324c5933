"""The pages that follow a record, a view and a captured row through the code name functions that exist, in the order of their calls."""

import ast
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.repo.tree import ROOT, parsed, prose, shown

PAGES = sorted((ROOT / "docs" / "contributing").glob("life-of-*.md"))
NAMES = {"life-of-a-record.md", "life-of-a-view.md", "life-of-a-captured-row.md"}
_STEP = re.compile(r"^(?P<number>\d+)\. `(?P<name>[\w.]+:[\w.]+)`(?: \(by (?P<by>[^)]+)\))?: \S")
_CALLER = re.compile(r"^`(?P<name>[\w.]+)`$")
INDIRECT = {"the registry", "a thread", "a callback"}
"""How a function is called that no step calls by its name: looked up in a table, by a thread that was started with it, or
through a reference that was handed over."""


@dataclass(frozen=True)
class Step:
    """One function or class of a page; `by` is what the page says of its caller, None for the step before it."""

    page: Path
    line: int
    number: int
    name: str
    by: str | None

    @property
    def qualname(self) -> str:
        return self.name.partition(":")[2]

    @property
    def simple_name(self) -> str:
        return self.qualname.rpartition(".")[2]

    def __str__(self) -> str:
        return f"{shown(self.page)}:{self.line}: {self.name}"


def chapters(page: Path) -> Iterator[list[Step]]:
    """The numbered lists of a page, each of which begins at 1."""
    steps: list[Step] = []
    for line, text in prose(page):
        if found := _STEP.match(text):
            if found["number"] == "1" and steps:
                yield steps
                steps = []
            steps.append(Step(page, line, int(found["number"]), found["name"], found["by"]))
    yield steps


def resolved(name: str) -> Any:
    """What a dotted name stands for, without decorators and the wrapping of properties and class methods."""
    module, _, qualname = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        if isinstance(found, property):
            found = found.fget
        elif isinstance(found, functools.cached_property):
            found = found.func
        elif isinstance(found, classmethod | staticmethod):
            found = found.__func__
    return inspect.unwrap(found) if callable(found) else found


def tree_of(name: str) -> ast.Module:
    """The syntax tree of the source of a function or a class."""
    return ast.parse(textwrap.dedent(inspect.getsource(resolved(name))))


def references(tree: ast.AST, simple_name: str, *, calls_only: bool) -> list[int]:
    """The lines on which a name is called, or used at all."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Call) or not calls_only]
    return [
        node.lineno
        for node in (node.func if isinstance(node, ast.Call) else node for node in nodes)
        if (isinstance(node, ast.Name) and node.id == simple_name)
        or (isinstance(node, ast.Attribute) and node.attr == simple_name)
    ]


def is_property(name: str) -> bool:
    """Whether a name is that of a property, which is read and not called."""
    module, _, qualname = name.partition(":")
    owner, _, simple_name = qualname.rpartition(".")
    found: Any = importlib.import_module(module)
    for part in owner.split(".") if owner else ():
        found = getattr(found, part)
    return isinstance(inspect.getattr_static(found, simple_name), property | functools.cached_property)


def caller_of(step: Step, before: list[Step]) -> Step | None:
    """The step that calls this one; None if there is none of the name that the page says."""
    if step.by is None:
        return before[-1]
    named = _CALLER.match(step.by)
    found = [each for each in before if named and named["name"] == each.qualname]
    return found[-1] if found else None


def problems(steps: list[Step]) -> Iterator[str]:
    """What is wrong with the order of a list."""
    last_call: dict[str, int] = {}
    for place, step in enumerate(steps):
        if step.number != place + 1:
            yield f"{step} is number {step.number} and not {place + 1}"
        if place == 0:
            continue
        before = steps[:place]
        if step.by in INDIRECT:
            modules = {each.name.partition(":")[0] for each in (*before, step)}
            if not any(_mentions(module, step.simple_name) for module in modules):
                yield f"{step} is named by no module of a step before it"
            continue
        caller = caller_of(step, before)
        if caller is None:
            yield f"{step}: no step before it is called {step.by}"
            continue
        lines = references(tree_of(caller.name), step.simple_name, calls_only=not is_property(step.name))
        if not lines:
            yield f"{step} is not called by {caller.name}"
            continue
        if max(lines) < last_call.get(caller.name, 0):
            yield f"{step} is called by {caller.name} before an earlier step of the list"
        last_call[caller.name] = max(last_call.get(caller.name, 0), min(lines))


def _mentions(module: str, simple_name: str) -> bool:
    file = sys.modules[module].__file__
    assert file is not None
    return bool(references(parsed(Path(file)), simple_name, calls_only=False))


def test_there_are_three_pages() -> None:
    assert {page.name for page in PAGES} == NAMES


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_numbered_item_names_a_function(page: Path) -> None:
    items = [f"{shown(page)}:{line}: {text}" for line, text in prose(page) if re.match(r"\d+\. ", text)]
    wrong = [item for item in items if not _STEP.match(item.split(": ", 1)[1])]
    assert items
    assert not wrong, "write 1. `module:qualname`: why\n" + "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_every_name_is_there(page: Path) -> None:
    wrong = []
    for step in (step for steps in chapters(page) for step in steps):
        try:
            resolved(step.name)
        except (ImportError, AttributeError) as error:
            wrong.append(f"{step}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_each_function_is_called_by_the_step_that_the_page_says(page: Path) -> None:
    wrong = [problem for steps in chapters(page) for problem in problems(steps)]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_order_is_found(tmp_path: Path) -> None:
    page = tmp_path / "life-of-a-mistake.md"
    topic, append, conform = (
        "headwater.log.topic:Topic.append",
        "headwater.log.append_rows:append_rows",
        "headwater.catalog.conform:conform",
    )
    steps = [
        Step(page, place, place, name, by)
        for place, (name, by) in enumerate(
            [(topic, None), (append, None), (conform, None), (append, "`Topic.append`")], start=1
        )
    ]
    assert not list(problems(steps))
    swapped = [Step(page, n, n, name, None) for n, name in enumerate((topic, conform, append), start=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.repo.test_life_pages.shown", str)
        assert [text.split(": ", 1)[1] for text in problems(swapped)] == [
            f"{conform} is not called by {topic}",
            f"{append} is not called by {conform}",
        ]
