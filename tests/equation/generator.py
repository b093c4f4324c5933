"""Random workspaces and scripts for the engine, from a seed: the same seed, size and features give the same case.

`generate` makes topics, views over them and over each other, and a script of steps. Every SELECT is a function of the
multisets of rows that it reads, raises no error on the values that are generated, and says which features it uses, so
that an engine which can do less asks for less.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

from tests.equation.grammar.choice import Chooser, DeadEndError
from tests.equation.grammar.model import (
    Append,
    AtomicAppend,
    Case,
    Column,
    Compact,
    CrashAndReopen,
    CreateView,
    Delete,
    DropView,
    History,
    Retention,
    Row,
    Step,
    Tick,
    Topic,
    Upsert,
    View,
)
from tests.equation.grammar.relations import Relation
from tests.equation.grammar.scripts import Script
from tests.equation.grammar.selects import JOINS, SET_OPERATIONS, Selects
from tests.equation.grammar.values import NESTED, random_topic

__all__ = [
    "FEATURES",
    "STEPS",
    "Append",
    "AtomicAppend",
    "Case",
    "Column",
    "Compact",
    "CrashAndReopen",
    "CreateView",
    "Delete",
    "DropView",
    "History",
    "Retention",
    "Row",
    "Size",
    "Step",
    "Tick",
    "Topic",
    "Upsert",
    "View",
    "features_of",
    "generate",
]

TOPICS = frozenset({"keyed_topics", "compound_keys", "partitions", "nested_types"})
VALUES = frozenset({"nulls", "special_floats", "extremes"})
EXPRESSIONS = frozenset(
    ["arithmetic", "conditional", "string_functions", "date_functions", "nested_functions", "lambda", "try"]
)
AGGREGATES = frozenset(
    [
        "count",
        "sum",
        "avg",
        "min_max",
        "count_distinct",
        "sum_distinct",
        "bool_and_or",
        "variance",
        "min_by_max_by",
        "collect_set",
        "array_agg",
        "percentile",
        "filter_clause",
    ]
)
SELECTS = frozenset(
    [
        "filter",
        "distinct",
        "group_by",
        "global_aggregate",
        "having",
        "rollup",
        "cube",
        "grouping_sets",
        "tumbling_window",
        "hopping_window",
        "order_limit",
        "offset",
        "qualify",
        "row_number",
        "rank",
        "dense_rank",
        "lag_lead",
        "window_sum",
        "window_avg",
        "window_min_max",
        "window_count",
        "self_join",
        "three_way_join",
        "join_condition",
        "join_null_safe",
        "in_subquery",
        "not_in_subquery",
        "exists",
        "not_exists",
        "scalar_subquery",
        "correlated_scalar_subquery",
        "explode",
        "explode_outer",
        "posexplode",
        "inline",
        "cte",
        "derived_table",
        "views_over_views",
    ]
)
STEPS = frozenset(
    [
        "tick_rows",
        "delete",
        "atomic_append",
        "same_row",
        "same_sequence",
        "crash",
        "compaction",
        "retention",
        "create_view",
        "drop_view",
    ]
)
FEATURES = (
    TOPICS
    | VALUES
    | EXPRESSIONS
    | AGGREGATES
    | SELECTS
    | frozenset(SET_OPERATIONS)
    | frozenset(JOINS)
    | STEPS
)
"""Everything that can be switched on. Plain topics, columns, literals, comparisons and projections need no switch."""

VIEW_DEPTH_MAX = 3


@dataclass(frozen=True)
class Size:
    """How large a case is, at most. `depth` is how far queries nest within a view."""

    topics: int = 3
    views: int = 4
    steps: int = 12
    rows: int = 8
    depth: int = 1


def generate(seed: int, size: Size = Size(), features: Iterable[str] = FEATURES) -> Case:  # noqa: B008
    """The case of a seed, made of these features alone."""
    allowed = frozenset(features)
    if unknown := allowed - FEATURES:
        raise ValueError(f"no such features: {', '.join(sorted(unknown))}")
    rng = random.Random(seed)
    topics = [random_topic(rng, f"t{i + 1}", allowed) for i in range(rng.randint(1, size.topics))]
    views = _views(rng, topics, size, allowed)
    later = rng.randint(0, len(views) // 2) if "create_view" in allowed else 0
    at_start, midway = views[: len(views) - later], views[len(views) - later :]
    steps = Script(rng, topics, at_start, midway, allowed).steps(size.steps, size.rows)
    return Case(tuple(topics), tuple(at_start), tuple(steps), seed)


def _views(rng: random.Random, topics: list[Topic], size: Size, allowed: frozenset[str]) -> list[View]:
    relations = [Relation(t.name, t.columns, size.steps * size.rows / 2 / len(topics)) for t in topics]
    depths = {relation.name: 0 for relation in relations}
    views: list[View] = []
    for number in range(rng.randint(min(2, size.views), size.views)):
        chooser = Chooser(rng, allowed)
        below = [relation for relation in relations if relation.depth < VIEW_DEPTH_MAX]
        try:
            query = Selects(chooser, below).view(rng.randint(0, size.depth))
        except DeadEndError:
            continue
        name = f"v{number + 1}"
        depths[name] = 1 + max(depths[read] for read in chooser.reads)
        reads = tuple(sorted(chooser.reads))
        views.append(View(name, query.sql, reads, query.columns, frozenset(chooser.used)))
        relations.append(Relation(name, query.columns, query.rows, depths[name]))
    return views


def features_of(case: Case) -> frozenset[str]:
    """The features that a case uses: of its views, topics, values and steps."""
    used = set(case.features)
    for topic in case.topics:
        used |= {"keyed_topics"} if topic.key else set()
        used |= {"compound_keys"} if len(topic.key) > 1 else set()
        used |= {"partitions"} if topic.partitions > 1 else set()
        used |= {"nested_types"} if any(column.kind in NESTED for column in topic.columns) else set()
        used |= {"extremes"} if any(column.bound > 1000 for column in topic.columns) else set()
    producers: set[tuple[str | None, int | None]] = set()
    rows_seen: list[Row] = []
    for step in case.steps:
        match step:
            case Tick(rows) if rows is not None:
                used.add("tick_rows")
            case CrashAndReopen():
                used.add("crash")
            case Compact():
                used.add("compaction")
            case Retention():
                used.add("retention")
            case CreateView():
                used.add("create_view")
            case DropView():
                used.add("drop_view")
            case Delete():
                used.add("delete")
            case AtomicAppend():
                used.add("atomic_append")
            case Append() | Upsert():
                if step.producer is not None and (step.producer, step.sequence) in producers:
                    used.add("same_sequence")
                producers.add((step.producer, step.sequence))
                used |= {"same_row"} if any(row in rows_seen for row in step.rows) else set()
                rows_seen += step.rows
    return frozenset(used)
