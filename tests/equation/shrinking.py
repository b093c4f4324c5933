"""A failing case made small: steps, views, rows and topics dropped as long as it fails; and its text as a test."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import date, datetime
from typing import Any, TypeVar

from tests.equation.grammar.model import (
    Append,
    AtomicAppend,
    Case,
    Compact,
    CreateView,
    Delete,
    DropView,
    Retention,
    Step,
    Upsert,
    View,
)

T = TypeVar("T")

LEFT_OUT = {"columns": View, "features": View}
"""What only the generator needs to know, and a test that was written down does not."""


def shrink(case: Case, fails: Callable[[Case], bool], attempts: int = 400) -> Case:
    """The smallest case found that still fails; its reproduction is printed.

    Greedy, and `fails` is called at most `attempts` times; it must say False for a case that fails in another way, if
    that matters. What it is given is always sound: no step or view names what is not there.
    """
    left = attempts

    def still(candidate: Case) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    smaller = True
    while smaller and left > 0:
        smaller = False
        for candidates in (_fewer_steps, _fewer_views, _fewer_topics, _fewer_rows):
            case, dropped = _descend(case, candidates, still)
            smaller = smaller or dropped
    print(reproduction(case))
    return case


def _descend(
    case: Case, candidates: Callable[[Case], Iterator[Case]], still: Callable[[Case], bool]
) -> tuple[Case, bool]:
    """Follow candidates down as long as one fails; whether any did."""
    dropped = False
    while (found := next((c for c in candidates(case) if c != case and still(c)), None)) is not None:
        case, dropped = found, True
    return case, dropped


def _shorter(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """The items without a half, a quarter, ... a single one of them; the later ones are dropped first."""
    size = len(items) // 2
    while size >= 1:
        for stop in range(len(items), 0, -size):
            yield (*items[: max(0, stop - size)], *items[stop:])
        size //= 2
    if len(items) == 1:
        yield ()


def _fewer_steps(case: Case) -> Iterator[Case]:
    for steps in _shorter(case.steps):
        yield tidy(replace(case, steps=steps))


def _fewer_views(case: Case) -> Iterator[Case]:
    for view in reversed(case.all_views):
        views = tuple(v for v in case.views if v != view)
        steps = tuple(s for s in case.steps if s != CreateView(view))
        yield tidy(replace(case, views=views, steps=steps))
    # A view made midway may as well be there from the start.
    for step in case.steps:
        if isinstance(step, CreateView):
            steps = tuple(s for s in case.steps if s != step)
            yield tidy(replace(case, views=(*case.views, step.view), steps=steps))


def _fewer_topics(case: Case) -> Iterator[Case]:
    for topic in case.topics:
        yield tidy(replace(case, topics=tuple(t for t in case.topics if t != topic)))
        if topic.partitions > 1:
            single = replace(topic, partitions=1)
            yield replace(case, topics=tuple(single if t == topic else t for t in case.topics))


def _fewer_rows(case: Case) -> Iterator[Case]:
    for number, step in enumerate(case.steps):
        for smaller in _smaller_steps(step):
            yield replace(case, steps=(*case.steps[:number], smaller, *case.steps[number + 1 :]))


def _smaller_steps(step: Step) -> Iterator[Step]:
    match step:
        case Append(rows=rows) | Upsert(rows=rows):
            yield from (replace(step, rows=fewer) for fewer in _shorter(rows) if fewer)
            if step.producer is not None:
                yield replace(step, producer=None, sequence=None)
        case Delete(keys=keys):
            yield from (replace(step, keys=fewer) for fewer in _shorter(keys) if fewer)
        case AtomicAppend(rows=by_topic):
            for topic, rows in by_topic.items():
                for fewer in _shorter(rows):
                    kept = {**by_topic, topic: fewer}
                    kept = {name: rows for name, rows in kept.items() if rows}
                    if kept:
                        yield replace(step, rows=kept)


def tidy(case: Case) -> Case:
    """The case without what names a topic or view that is not there, at that point of the script."""
    topics = {topic.name for topic in case.topics}
    there = set(topics)
    views = []
    for view in case.views:
        if set(view.reads) <= there:
            views.append(view)
            there.add(view.name)
    steps: list[Step] = []
    for step in case.steps:
        match step:
            case CreateView(view):
                if not set(view.reads) <= there:
                    continue
                there.add(view.name)
            case DropView(name):
                if name not in there:
                    continue
                there.discard(name)
            case AtomicAppend(rows):
                kept = {name: appended for name, appended in rows.items() if name in topics}
                if not kept:
                    continue
                step = replace(step, rows=kept)
            case Append(topic) | Upsert(topic) | Delete(topic) | Compact(topic) | Retention(topic):
                if topic not in topics:
                    continue
        steps.append(step)
    return replace(case, views=tuple(views), steps=tuple(steps))


def reproduction(case: Case) -> str:
    """The case as a test, with everything that it needs."""
    names = sorted(
        {name for part in (case, *case.topics, *case.views, *case.steps) for name in _classes(part)}
    )
    title = "unnamed" if case.seed is None else f"{case.seed}"
    return "\n".join(
        [
            "import datetime",
            "from decimal import Decimal",
            "from math import inf, nan",
            "",
            f"from tests.equation.generator import {', '.join(names)}",
            "from tests.equation.play import Player",
            "",
            "",
            f"def test_seed_{title}_once_failed(tmp_path, oracle, spark):",
            f"    case = {_source(case, 4)}",
            '    Player(case, tmp_path / "ws", oracle, spark).play()',
            "",
        ]
    )


def _classes(value: Any) -> Iterator[str]:
    yield type(value).__name__
    if isinstance(value, CreateView):
        yield "View"
    if hasattr(value, "columns") and not isinstance(value, View):
        yield "Column"


def _source(value: Any, indent: int) -> str:
    """A value as Python that makes it again."""
    inner = " " * (indent + 4)
    if is_dataclass(value):
        parts = []
        for part in fields(value):
            content = getattr(value, part.name)
            if content == part.default or isinstance(value, LEFT_OUT.get(part.name, ())):
                continue
            parts.append(f"{part.name}={_source(content, indent + 4)}")
        text = ", ".join(parts)
        if len(text) < 80 and "\n" not in text:
            return f"{type(value).__name__}({text})"
        lines = "".join(f"{inner}{part},\n" for part in parts)
        return f"{type(value).__name__}(\n{lines}{' ' * indent})"
    if isinstance(value, tuple):
        lines = "".join(f"{inner}{_source(item, indent + 4)},\n" for item in value)
        return "(" + (f"\n{lines}{' ' * indent}" if value and not _flat(value) else _flat_items(value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k!r}: {_source(v, indent)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_source(item, indent) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, datetime):
        return repr(value).replace("tzinfo=datetime.timezone.utc", "tzinfo=datetime.UTC")
    if isinstance(value, date):
        return repr(value)
    return repr(value)


def _flat(values: tuple[Any, ...]) -> bool:
    return all(isinstance(value, str) for value in values)


def _flat_items(values: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, values)) + ("," if len(values) == 1 else "")
