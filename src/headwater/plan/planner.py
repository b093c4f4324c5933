"""SQL to operator graph: Spark parses, resolves and optimizes the SELECT, and its plan is translated to Headwater's
operators.

Spark's optimizer pushes filters down, drops columns, turns subqueries into joins and set operations into aggregates, so
that few kinds of nodes remain, and they have Spark's semantics: casts, null rules and decimal types are explicit. Queries
without an incremental form are rejected with an error that underlines the SQL responsible.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from headwater.core.errors import HeadwaterError, StatementError
from headwater.operators import graph as g
from headwater.operators.graph_text import fingerprint_of, graph_text, schema_text
from headwater.plan.lowering.approximate_columns import shown_as_they_are
from headwater.plan.lowering.lowering import lowering_of
from headwater.plan.lowering.scans import keep_hidden, places_read
from headwater.plan.match_recognize.clause import with_matches, with_relations_named
from headwater.plan.percolator.percolator_graph import match_graph
from headwater.plan.relations.metadata_columns import (
    changelog_of,
    hidden_among,
    hidden_in,
    in_order,
    is_versions,
    table_topic,
    versions_of,
)
from headwater.plan.relations.relations import (
    COLUMN_KEY,
    SOURCE_KEY,
    Evaluation,
    Relation,
    Times,
    VersionedRelation,
    with_versions,
)
from headwater.plan.rewrite.approximate_answers import Answers
from headwater.plan.rewrite.cumulate_window import cumulated, with_own_functions
from headwater.plan.rewrite.determinism import SOON, Determinism
from headwater.plan.rewrite.exact_moments import has_moments
from headwater.plan.rewrite.metadata_column_windows import with_named_columns
from headwater.plan.rewrite.ordered_lists import with_ordered_lists
from headwater.plan.rewrite.relation_names import RelationNames, RelationPlan
from headwater.plan.rewrite.system_versions import Unversioned, VersionedNames, view_without_versions
from headwater.plan.rewrite.udf_registration import SessionFunctions
from headwater.plan.rewrite.unused_orders import unread_orders
from headwater.plan.rewrite.whole_rows import with_whole_rows
from headwater.plan.time.event_time import timing_of, with_policy
from headwater.plan.time.late_policy import NEEDED, Policy
from headwater.plan.time.session_distincts import with_distincts_of_sessions
from headwater.plan.time.session_values import with_sessions_kept, without_barriers
from headwater.plan.time.state_expiry import Expiries, expiries, expiring_as
from headwater.plan.time.timed_plan import LatePlan, TimedPlan
from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    children_of,
    kind,
    option,
    output_of,
    readable,
    spark_schema_json,
)
from headwater.spark.spark_errors import own_errors, unplanned
from headwater.spark.spark_session import own_session
from headwater.sql.foreign.foreign_spellings import respelled_function, respelled_type
from headwater.sql.lexer import pointing, words_of
from headwater.sql.match_recognize_places import has_timeouts
from headwater.sql.ordered_aggregates import spark_query
from headwater.sql.standing_statements import StandingDefinition, parse_standing
from headwater.sql.statements import QueryText
from headwater.sql.system_time import may_read_versions
from headwater.udf.folds import FoldDefinition, graph, parse_fold
from headwater.udf.udf_registry import Functions

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

_MENTIONED = re.compile(r"View \(`([^`]+)`")
_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")
_NO_WINDOW = re.compile(r"The input is not a correct window column: window_time\((\w+)")
_COUNTED = re.compile(r"(?<=_common_expr)_\d+")
"""Matches the suffixes of names that Spark numbers per process."""
_LOOKED_INTO = ("INVALID_EXTRACT_BASE_FIELD_TYPE", "FIELD_NOT_FOUND", "INVALID_EXTRACT_FIELD_TYPE")
"""Error conditions that Spark raises where it took the name before a dot for a column."""
_NO_FUNCTION = re.compile(r"Spark: Cannot resolve routine `(\w+)`")
_MISUSED = re.compile(r'Spark: Cannot resolve "(time_bucket)\(')
_NO_TYPE = re.compile(r'Spark: Unsupported data type "(\w+)')
_TYPED = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
"""Types that make a text literal a time."""
_RULES = "org.apache.spark.sql.catalyst.optimizer."
_EXCLUDED = (
    # These rules inspect the (empty) data that represents a source during planning.
    "PropagateEmptyRelation",
    "OptimizeOneRowPlan",
    # These rules place limits where the order is no longer known.
    "LimitPushDown",
    "LimitPushDownThroughWindow",
    "InferWindowGroupLimit",
    "EliminateLimits",
    # `EXISTS (SELECT ...)` is planned as a semi join, not as a row picked by LIMIT 1.
    "RewriteNonCorrelatedExists",
    # These rules share work between subqueries in ways that a tree of operators cannot represent.
    "MergeScalarSubqueries",
    "MergeSubplans",
)
_NEW_LAYOUTS = {"moments": "\nmoments in long sums"}
"""Suffix of the graph's shape for functions whose state layout differs from earlier releases."""
_IN_ORDER = "\nmoments of sorted rows"
"""Suffix of the graph's shape where moments of rows are computed differently than in earlier releases: retractions would
not match the rows emitted before."""
_GROUPS_MAX = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"
"""Above this number of groups Spark sums the rows of a group in parts, which depend on the other groups."""
_INLINE = "spark.sql.alwaysInlineCommonExpr"
"""Makes Spark inline the operands that BETWEEN and NULLIF read twice: a separate node for them would separate a correlated
condition from the join that it becomes part of."""


@dataclass(frozen=True)
class Plan:
    """A planned query."""

    root: g.Node
    schema: pa.Schema
    inputs: Mapping[str, tuple[str, ...]]
    """Relations named by the query, with their columns at the time of planning."""
    reads: tuple[str, ...]
    """Relations that the graph reads: possibly fewer, where the optimizer removed unused ones."""
    fingerprint: str
    """Fingerprint of the graph: state with another fingerprint belongs to a different graph."""
    refuse: Refuse = field(compare=False, repr=False)
    """`refuse(node, message, hint=..., **facts)` raises an error that underlines the part of the SQL from which a graph node was
    made."""
    hidden: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Metadata columns that the graph reads, by topic."""
    late: tuple[LateGraph, ...] = ()
    """Graphs of the rows of topics that may be late."""
    expiries: Expiries = field(default_factory=dict, repr=False)
    """Expiry of the operators' state."""
    approximate: Mapping[int, g.MergeableFunction] = field(default_factory=dict, compare=False, repr=False)
    """Columns that are answers of sketches."""
    exactly: bool = False
    """Whether approximate functions are answered exactly, because no sketch can be kept or the query computes with its
    answer."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings about parts of the query without the effect that the author may expect."""
    columns_read: Callable[[], Mapping[str, frozenset[str]]] = field(default=dict, compare=False, repr=False)
    """Columns that the rows are computed from, by topic or view; computed on the first call."""


@dataclass(frozen=True)
class LateGraph:
    """The rows of a topic that may be late at one place of a query: the topic's columns, then LATE_COLUMNS."""

    topic: str
    root: g.Node

    @property
    def source(self) -> str:
        """Name of the source of the graph: the topic, or the records of a keyed topic."""
        return g.sources(self.root)[0].name


class Planner:
    """Plans queries over relations that have a schema and no rows."""

    def __init__(self, spark: SparkSession, functions: Functions | None = None) -> None:
        self._spark = own_session(spark)
        self._spark.conf.set("spark.sql.optimizer.excludedRules", ",".join(_RULES + r for r in _EXCLUDED))
        self._spark.conf.set(_GROUPS_MAX, str(2**31 - 1))
        self._spark.conf.set(_INLINE, "true")
        self.catalyst = Catalyst(self._spark)
        self._registered: dict[str, Relation] = {}
        self._functions = functions
        self._known = None if functions is None else SessionFunctions(self.catalyst, functions, runs=False)
        self._guard = threading.RLock()

    @own_errors(unplanned)
    def plan(self, query: QueryText, relations: Mapping[str, Relation], policy: Policy | None = None) -> Plan:
        """Return the operator graph of a query; StatementError, underlining the mistake, if the query is invalid or cannot
        be maintained."""
        if (fold := parse_fold(query.text)) is not None and self._functions is not None:
            return _fold_plan(fold, query, relations, self._functions)
        if (standing := parse_standing(query.text)) is not None and self._functions is not None:
            return _standing_plan(standing, query, relations, self._functions)
        policy = replace(policy or Policy(), times_out=has_timeouts(query.text))
        with self._guard:  # the session's registered names belong to one plan at a time
            return self._plan(query, relations, policy)

    @own_errors(unplanned)
    def times(self, query: QueryText, relations: Mapping[str, Relation]) -> Mapping[int, Times]:
        """Return the columns of a query that have event times, or windows of them, by index."""
        if parse_fold(query.text) is not None or parse_standing(query.text) is not None:
            return {}
        with self._guard:
            return self._analysed(query, relations, Policy(), is_timed=True)[1].times

    def signatures(self) -> Callable[[str], tuple[str, ...]]:
        """Read the declared functions once, and return a function that lists the signatures of those that a query uses. The
        plan of a query changes when these signatures change."""
        if self._functions is None:
            return lambda query: ()
        return partial(self._functions.signatures, declared=self._functions.declared())

    def _plan(
        self,
        query: QueryText,
        relations: Mapping[str, Relation],
        policy: Policy,
        answers: Answers = "approximate",
    ) -> Plan:
        pinned, timed, names = self._analysed(
            query, relations, policy, is_timed=not policy.is_plain, answers=answers
        )
        kept = with_sessions_kept(self.catalyst, timed.plan)
        optimized = self._optimized(query, kept.plan)
        if kept.renamed:
            optimized = without_barriers(self.catalyst, optimized)
        lowering = lowering_of(self.catalyst, relations, refuser(query), self._functions)
        if names.met:
            keep_hidden(lowering, optimized)
        root, attributes = lowering.lower(optimized)
        shown = len(attributes) - 2 if policy.emits else len(attributes)
        schema = self._schema(query, pinned, attributes[:shown])
        if policy.emits:
            domains = tuple(tuple(sorted(topics)) for topics in timed.domains)
            root = g.Close(root, domains, schema, append_only=policy.options.late != "correct")
            lowering.origins[id(root)] = (root, timed.plan)
        elif isinstance(root, g.Map):
            root = replace(root, schema=schema)
        approximate = shown_as_they_are(root, lowering.sketched)
        if answers == "approximate" and (approximate is None or lowering.lacks_sketches):
            return self._plan(query, relations, policy, "exact")
        late = tuple(self._late(query, relations, part) for part in timed.late)
        shape = _COUNTED.sub("", f"{graph_text(root)}\n{schema_text(schema)}") + "\n".join(_numbered(query))
        shape += "".join(kept for function, kept in _NEW_LAYOUTS.items() if f"kind={function!r}" in shape)
        if any(_computes_moments(node) for node in g.walk(root)):
            shape += _IN_ORDER
        return Plan(
            root=root,
            schema=schema,
            inputs={
                name: tuple(relation.schema.names)
                for name, relation in relations.items()
                if name in names.met
                or name.lower() in {m.lower() for m in _MENTIONED.findall(pinned.toString())}
            },
            reads=tuple(dict.fromkeys(s.name for s in g.sources(root))),
            fingerprint=fingerprint_of(shape),
            refuse=_node_refuser(query, lowering.origins),
            hidden=_hidden([root, *(graph.root for graph in late)]),
            late=late,
            expiries=expiries(lowering.origins, expiring_as(timed.expiring, kept.renamed)),
            columns_read=cache(partial(_columns_read, optimized, relations)),
            warnings=unread_orders(pinned),
            approximate=approximate or {},
            exactly=answers == "exact",
        )

    def _analysed(
        self,
        query: QueryText,
        relations: Mapping[str, Relation],
        policy: Policy,
        *,
        is_timed: bool,
        answers: Answers = "approximate",
    ) -> tuple[Jvm, TimedPlan, RelationNames]:
        """Return Spark's analysed plan of a query; with `is_timed`, the late-row policy is applied to it."""
        self.catalyst.matches.clear()  # graphs keep copies of their patterns
        self._register(relations)
        words = {word.text.lower() for word in words_of(query.text) if word.is_name}
        dotted = [name for name in relations if "." in name and name.lower().rpartition(".")[2] in words]
        always = NEEDED if policy.leaves_out else ()
        opened = self._relation_plans(words, relations, is_timed, always)
        names = VersionedNames(
            self.catalyst,
            opened,
            dotted,
            self._versions(query, words, relations),
            spark_query(query.text),
            refuser(query),
        )
        pinned = pin(self.catalyst, query, self._known, names, answers)
        if not is_timed:
            return pinned, TimedPlan(pinned), names

        def changelog(name: str) -> Jvm:
            table = relations[name]
            return self._open(changelog_of(name), table.schema, table.hidden).plan

        timing = timing_of(self.catalyst, with_versions(relations), refuser(query), policy, changelog)
        return pinned, with_policy(timing, pinned), names

    def _late(self, query: QueryText, relations: Mapping[str, Relation], part: LatePlan) -> LateGraph:
        optimized = self._optimized(query, part.plan)
        lowering = lowering_of(self.catalyst, relations, refuser(query), self._functions)
        keep_hidden(lowering, optimized)
        return LateGraph(part.topic, lowering.lower(optimized)[0])

    def _optimized(self, query: QueryText, plan: Jvm) -> Jvm:
        """Return Spark's optimized plan; StatementError if a part of it fails for any row, such as CAST('x' AS INT)."""
        from pyspark.errors import PySparkException

        try:
            return self.catalyst.dataset(plan).queryExecution().optimizedPlan()
        except PySparkException as error:
            raise statement_error(query, error) from None

    def _register(self, relations: Mapping[str, Relation]) -> None:
        for name in [n for n in self._registered if n not in relations]:
            self._spark.catalog.dropTempView(name)
            del self._registered[name]
        empty = self._spark.sparkContext._jsc.emptyRDD()
        for name, relation in relations.items():
            if self._registered.get(name) == relation:
                continue
            marks = [{SOURCE_KEY: name, COLUMN_KEY: i} for i in range(len(relation.schema))]
            schema = self.catalyst.struct_type(spark_schema_json(relation.schema, marks))
            frame = self.catalyst.session.createDataFrame(empty, schema)
            frame.createOrReplaceTempView(f"`{name}`")
            self._registered[name] = relation

    def _relation_plans(
        self,
        words: Collection[str],
        relations: Mapping[str, Relation],
        every: bool = False,
        always: Collection[str] = (),
    ) -> dict[str, RelationPlan]:
        """Return the relations of which a query of these words may read metadata columns. With `every`, return each
        relation that it may read; streams have the `always` metadata columns in addition."""
        wanted = set(hidden_among(words))
        opened = {}
        for name, relation in relations.items():
            needed = wanted | set(always) if relation.is_stream else wanted
            hidden = [field for field in relation.hidden if field.name in needed]
            if (hidden or every) and name.lower() in words:
                opened[name] = self._open(name, relation.schema, hidden)
        return opened

    def _open(self, name: str, schema: pa.Schema, hidden: Iterable[pa.Field]) -> RelationPlan:
        """Return an empty relation of this name, with these columns followed by metadata columns."""
        full = pa.schema([*schema, *hidden])
        marks = [{SOURCE_KEY: name, COLUMN_KEY: i} for i in range(len(full))]
        empty = self._spark.sparkContext._jsc.emptyRDD()
        known = self.catalyst.struct_type(spark_schema_json(full, marks))
        frame = self.catalyst.session.createDataFrame(empty, known)
        return RelationPlan(frame.queryExecution().analyzed(), len(schema))

    def _versions(
        self, query: QueryText, words: Collection[str], relations: Mapping[str, Relation]
    ) -> dict[str, RelationPlan | Unversioned]:
        """Return the relations of which a query of these words may read row versions, or why they have none."""
        if not may_read_versions(query.text):
            return {}
        named = {name: relation for name, relation in relations.items() if name.lower() in words}
        found: dict[str, RelationPlan | Unversioned] = {}
        for name, relation in named.items():
            versions = relation.versions or VersionedRelation(refusal=view_without_versions(name))
            found[name] = versions.refusal or self._open(versions_of(name), relation.schema, versions.hidden)
        return found

    def _schema(self, query: QueryText, pinned: Jvm, attributes: list[Jvm]) -> pa.Schema:
        names = [a.name() for a in output_of(pinned)]
        seen: dict[str, str] = {}
        for name in names:
            if name.lower() in seen:
                refuser(query)(
                    pinned,
                    f"the view has two columns named {name!r}",
                    hint="rename one of them with AS",
                    reason="duplicate-column",
                    name=name,
                )
            seen[name.lower()] = name
        types = [self.catalyst.arrow_type(a.dataType()) for a in attributes]
        return pa.schema([pa.field(n, t) for n, t in zip(names, types, strict=True)])


def _numbered(query: QueryText) -> list[str]:
    """Return the constants of a query if one of them contains `#` or a backslash: text such as `#1` looks like an attribute
    ID and is removed when Spark's printed plan is read, so the shape must include the constants."""
    words = words_of(query.text)
    is_plain = not any("#" in word.text or "\\" in word.text for word in words if word.kind == "string")
    return [] if is_plain else [word.text for word in words if word.kind in ("string", "number")]


def _fold_plan(
    fold: FoldDefinition, query: QueryText, relations: Mapping[str, Relation], functions: Functions
) -> Plan:
    """Return the plan of a fold, which does not need Spark."""
    definition = functions.declared().get(fold.name.lower())
    if definition is None or fold.topic not in relations:
        raise StatementError(
            f"there is no fold {fold.name!r} of topic {fold.topic!r}",
            hint="declare it: ws.fold(...)",
            fold=fold.name,
            topic=fold.topic,
        )
    schema = relations[fold.topic].schema
    root, shown = graph(fold, schema, definition, functions)
    return Plan(
        root=root,
        schema=shown,
        inputs={fold.topic: tuple(schema.names)},
        reads=(fold.topic,),
        fingerprint=fingerprint_of(graph_text(root)),
        refuse=refuser(query),
        columns_read=lambda: {fold.topic: frozenset(schema.names)},
    )


def _standing_plan(
    standing: StandingDefinition, query: QueryText, relations: Mapping[str, Relation], functions: Functions
) -> Plan:
    """Return the plan of a percolator view, which does not need Spark."""
    root = match_graph(standing, relations, functions.log)
    names = (standing.topic, standing.queries)
    read = {
        table_topic(source.name): frozenset(n for n in source.schema.names if n not in source.hidden)
        for source in g.sources(root)
    }
    return Plan(
        root=root,
        schema=root.schema,
        inputs={name: tuple(relations[name].schema.names) for name in names},
        reads=tuple(source.name for source in g.sources(root)),
        fingerprint=fingerprint_of(graph_text(root)),
        refuse=refuser(query),
        hidden=_hidden([root]),
        columns_read=lambda: read,
    )


def _columns_read(plan: Jvm, relations: Mapping[str, Relation]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for name, places in places_read(plan).items():
        known = table_topic(name)
        columns = relations[known].schema.names
        read = frozenset(columns[place] for place in places if place < len(columns))
        found[known] = found.get(known, frozenset()) | read
    return found


def pin(
    catalyst: Catalyst,
    query: QueryText,
    functions: SessionFunctions | None = None,
    names: RelationNames | None = None,
    answers: Answers = "approximate",
) -> Jvm:
    """Return the analysed plan of a query, with every choice that Spark leaves open fixed, and approximate functions
    answered as `answers` says."""
    _refuse_moving_times(query)
    analysed = analyse(catalyst, query, functions, names).queryExecution().analyzed()
    return Determinism(catalyst, refuser(query), answers).pinned(analysed)


def _refuse_moving_times(query: QueryText) -> None:
    """Reject literals such as TIMESTAMP 'now': Spark replaces them by the current time when it parses the query, without a
    trace in the plan."""
    words = words_of(query.text)
    for kind_of, literal in pairwise(words):
        if (
            kind_of.is_name
            and kind_of.text.lower() in _TYPED
            and literal.kind == "string"
            and SOON.match(literal.text)
        ):
            raise pointing(
                query.source or query.text,
                query.start + kind_of.start,
                query.start + literal.end,
                f"{kind_of.text} '{literal.text}' depends on the current time, so the view would change without new records",
                hint="use a column, such as the time column of the topic",
                reason="depends-on-time",
            )


def analyse(
    catalyst: Catalyst,
    query: QueryText,
    functions: SessionFunctions | None = None,
    names: RelationNames | None = None,
    *,
    named: bool = True,
) -> Jvm:
    """Return a Dataset of a query in the SQL dialect of views; StatementError if Spark rejects the query. With `named`,
    Spark resolves metadata columns by name."""
    from pyspark.errors import PySparkException

    if functions is not None:
        functions.prepare(query.text)
    try:
        parsed = catalyst.session.sessionState().sqlParser().parsePlan(spark_query(query.text).text)
        parsed = with_relations_named(catalyst, parsed, query.text)
        parsed = parsed if names is None else names.resolved(parsed)
        parsed = parsed if names is None or named else names.with_hidden(parsed)
        parsed = with_own_functions(catalyst, parsed, query.text, refuser(query))
        if hidden_in(query.text):
            parsed = with_named_columns(catalyst, parsed)
        dataset = _dataset(catalyst, parsed, query)
        plan = dataset.queryExecution().analyzed()
        changed = cumulated(catalyst, plan, query.text)
        changed = with_distincts_of_sessions(catalyst, changed, refuser(query))
        if functions is not None:
            changed = functions.inlined(changed, refuser(query))
        return dataset if changed is plan else catalyst.dataset(changed)
    except PySparkException as error:
        if named and names is not None and error.getCondition() in _LOOKED_INTO:
            return analyse(catalyst, query, functions, names, named=False)
        raise statement_error(query, error) from None


def _dataset(catalyst: Catalyst, parsed: Jvm, query: QueryText) -> Jvm:
    """Return a Dataset of a parsed query; if Spark rejects it, retry with references to whole rows as structs."""
    from pyspark.errors import PySparkException

    def made(plan: Jvm) -> Jvm:
        plan = with_ordered_lists(catalyst, plan, query.text, refuser(query))
        return catalyst.dataset(with_matches(catalyst, plan, query, refuser(query)))

    try:
        return made(parsed)
    except PySparkException:
        rows = with_whole_rows(catalyst, parsed, query.text)
        if rows is None:
            raise
        return made(rows)


def refuser(query: QueryText) -> Refuse:
    """Return a function that rejects a Catalyst node with an error that underlines the SQL from which the node was parsed."""

    def refuse(node: Jvm, message: str, *, hint: str | None = None, **facts: Any) -> NoReturn:
        start, end = _place(node)
        if start is None or end is None:
            raise StatementError(message, detail=f"in {readable(node)[:200]}", hint=hint, **facts)
        raise _pointing(query, start, end, message, hint, **facts)

    return refuse


def _hidden(roots: Iterable[g.Node]) -> dict[str, tuple[str, ...]]:
    """Return the metadata columns of every source that has some."""
    found: dict[str, set[str]] = {}
    for source in (source for root in roots for source in g.sources(root)):
        if source.hidden:
            found.setdefault(source.name, set()).update(source.hidden)
    return {
        name: tuple(sorted(columns)) if is_versions(name) else in_order(columns)
        for name, columns in found.items()
    }


def _node_refuser(query: QueryText, origins: Mapping[int, tuple[g.Node, Jvm]]) -> Refuse:
    def refuse(node: g.Node, message: str, *, hint: str | None = None, **facts: Any) -> NoReturn:
        plan = origins[id(node)][1]
        match kind(plan):
            case "Join" | "Filter":
                place = plan.condition() if kind(plan) == "Filter" else option(plan.condition())
            case "Window":
                place = plan.windowExpressions().head()
            case _:
                place = plan
        refuser(query)(plan if place is None else place, message, hint=hint, **facts)

    return refuse


def _pointing(
    query: QueryText, start: int, end: int, message: str, hint: str | None, **facts: Any
) -> StatementError:
    """Return an error that underlines `start` to `end`, which are positions in the text that was passed to Spark."""
    at = spark_query(query.text).original
    text = query.source or query.text
    return pointing(text, query.start + at(start), query.start + at(end), message, hint=hint, **facts)


def _place(node: Jvm) -> tuple[int | None, int | None]:
    """Return the position in the SQL from which a node was parsed; if the node has none, the position of its first child
    that has one."""
    origin = node.origin()
    start, stop = origin.startIndex(), origin.stopIndex()
    if start.isDefined() and stop.isDefined():
        return start.get(), stop.get() + 1
    for child in children_of(node):
        place = _place(child)
        if place[0] is not None:
            return place
    return None, None


def statement_error(query: QueryText, error: Exception) -> HeadwaterError:
    """Translate Spark's error for a query into a Headwater error."""
    from pyspark.errors import PySparkException

    assert isinstance(error, PySparkException)
    message = error.getMessage() or str(error)
    first = message.strip().splitlines()[0]
    if first.startswith("[") and "] " in first:
        first = first.split("] ", 1)[1]
    first = f"Spark: {first.split(' SQLSTATE:')[0].rstrip('.; ')}"
    facts = {"condition": error.getCondition()}
    if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        facts["missing"] = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
        first = f"there is no topic or view {facts['missing']}"
    if (window := _NO_WINDOW.search(first)) is not None:
        return _no_window(query, window[1])
    found = _underlined(query, error, first, message)
    found.facts.update(facts)
    return found


def _no_window(query: QueryText, column: str) -> StatementError:
    """Return the error for `window_time` of a column that the query itself does not create with window(): Spark supports no
    other."""
    message = f"window_time() takes a window that the same query makes with window(), and {column} is none"
    hint = f"add the time to the view that makes the window: SELECT {column}, window_time({column}) AS t, ..."
    text = spark_query(query.text).text
    called = re.search(rf"\bwindow(_time)?\s*\(\s*(\w+\s*\.\s*)?`?{column}\b`?[^()]*\)", text, re.IGNORECASE)
    if called is None:
        return StatementError(message, hint=hint, reason="window-time")
    return _pointing(query, called.start(), called.end(), message, hint, reason="window-time")


def _underlined(query: QueryText, error: PySparkException, first: str, message: str) -> StatementError:
    """Return Spark's error with the part of the query underlined that Spark names, if any."""
    text = spark_query(query.text).text
    for context in error.getQueryContext() or []:
        start, stop = context.startIndex(), context.stopIndex()
        if 0 <= start <= stop < len(text):
            return _pointing(query, start, stop + 1, first, _hint(query, first))
    if (at := _POSITION.search(str(error))) is not None:
        start = sum(len(line) + 1 for line in text.split("\n")[: int(at[1]) - 1]) + int(at[2])
        return _pointing(query, start, start + 1, first, _hint(query, first))
    return StatementError(first, detail="\n".join(message.strip().splitlines()[1:8]) or None)


def _hint(query: QueryText, refusal: str) -> str | None:
    """Return a hint for an unresolved metadata column, function or type, or None."""
    words = words_of(query.text)[:-1]
    if (kind_of := _NO_TYPE.match(refusal)) is not None:
        return respelled_type(query.text, words, kind_of[1])
    if (misused := _MISUSED.match(refusal)) is not None:
        return respelled_function(query.text, words, misused[1])
    if (function := _NO_FUNCTION.match(refusal)) is not None:
        if (respelled := respelled_function(query.text, words, function[1])) is not None:
            return respelled
        return "no function of Spark or of this workspace has this name; ws.function(...) declares one"
    name = next(iter(hidden_among(re.findall(r"`(\w+)` cannot be resolved", refusal))), None)
    if name is None:
        return None
    if name == "_op":
        return "_op is a metadata column of topics with a primary key; a view has it if its SELECT names it"
    return f"{name} is a metadata column of topics; a view has it if its SELECT names it, and USING hides it: join with ON"


def _computes_moments(node: g.Node) -> bool:
    """Whether Spark computes moments from rows for a node."""
    evaluation = node.evaluate if isinstance(node, g.Regroup | g.Slide) else None
    return isinstance(evaluation, Evaluation) and has_moments(evaluation.plan)
