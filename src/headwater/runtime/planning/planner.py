"""SQL to operator graph: Spark parses, resolves and optimizes the SELECT, and its plan is read off as our few operators.

Spark's optimizer does what optimizers do (push filters down, drop columns, turn subqueries into joins and set
operations into aggregates), so the plan that arrives is small and already means what Spark means: casts, null rules and
decimal types are in it. What has no incremental form is refused, with the part of the SQL it came from underlined.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa

from headwater.errors import HeadwaterError, StatementError
from headwater.queries import graph as g
from headwater.queries.dialect import pointing
from headwater.queries.statements import Query
from headwater.runtime.planning.catalyst import Catalyst, Jvm, items, readable, spark_schema_json
from headwater.runtime.planning.determinism import Determinism, Refuse
from headwater.runtime.planning.handles import COLUMN_KEY, SOURCE_KEY, Relation
from headwater.runtime.planning.lowering import Lowering
from headwater.runtime.session import SEMANTICS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MENTIONED = re.compile(r"View \(`([^`]+)`")
_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")
_COUNTED = re.compile(r"(?<=_common_expr)_\d+")
"""Names that Spark numbers anew in each process."""
_RULES = "org.apache.spark.sql.catalyst.optimizer."
_EXCLUDED = (
    # They look at the (empty) data that stands in for a source while planning.
    "PropagateEmptyRelation",
    "OptimizeOneRowPlan",
    # They put limits where no order is known any more.
    "LimitPushDown",
    "LimitPushDownThroughWindow",
    "InferWindowGroupLimit",
    "EliminateLimits",
    # `EXISTS (SELECT ...)` is a semi join to us, not a row picked by LIMIT 1.
    "RewriteNonCorrelatedExists",
    # They share work between subqueries in ways that a tree of operators cannot show.
    "MergeScalarSubqueries",
    "MergeSubplans",
)


@dataclass(frozen=True)
class Plan:
    """A planned query."""

    root: g.Node
    schema: pa.Schema
    inputs: Mapping[str, tuple[str, ...]]
    """What it names, with the columns that each had."""
    reads: tuple[str, ...]
    """What its graph reads: less, where the optimizer found that something plays no part."""
    fingerprint: str
    """Changes when the graph does: state of another fingerprint is of another graph."""


class Planner:
    """Plans queries over relations that have a schema and, for now, no rows."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark.newSession()
        for name, value in SEMANTICS.items():
            self._spark.conf.set(name, value)
        self._spark.conf.set("spark.sql.optimizer.excludedRules", ",".join(_RULES + r for r in _EXCLUDED))
        self.catalyst = Catalyst(self._spark)
        self._registered: dict[str, Relation] = {}
        self._guard = threading.RLock()

    def plan(self, query: Query, relations: Mapping[str, Relation]) -> Plan:
        """The operator graph of a query; StatementError, underlining, if it cannot be read or kept."""
        with self._guard:  # the names that are known belong to one plan at a time
            return self._plan(query, relations)

    def _plan(self, query: Query, relations: Mapping[str, Relation]) -> Plan:
        self._register(relations)
        pinned = pin(self.catalyst, query)
        optimized = self.catalyst.dataset(pinned).queryExecution().optimizedPlan()
        lowering = Lowering(self.catalyst, relations, refuser(query))
        root, attributes = lowering.lower(optimized)
        schema = self._schema(query, pinned, attributes)
        if isinstance(root, g.Map):
            root = replace(root, schema=schema)
        shape = _COUNTED.sub("", f"{root!r}\n{schema}")
        return Plan(
            root=root,
            schema=schema,
            inputs={
                name: tuple(relation.schema.names)
                for name, relation in relations.items()
                if name.lower() in {m.lower() for m in _MENTIONED.findall(pinned.toString())}
            },
            reads=tuple(dict.fromkeys(s.name for s in g.sources(root))),
            fingerprint=hashlib.sha256(shape.encode()).hexdigest()[:16],
        )

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
            frame.createOrReplaceTempView(name)
            self._registered[name] = relation

    def _schema(self, query: Query, pinned: Jvm, attributes: list[Jvm]) -> pa.Schema:
        names = [a.name() for a in items(pinned.output())]
        seen: dict[str, str] = {}
        for name in names:
            if name.lower() in seen:
                refuser(query)(
                    pinned,
                    f"the view would have two columns named {name!r}",
                    hint="give one of them another name with AS",
                )
            seen[name.lower()] = name
        types = [self.catalyst.arrow_type(a.dataType()) for a in attributes]
        return pa.schema([pa.field(n, t) for n, t in zip(names, types, strict=True)])


def pin(catalyst: Catalyst, query: Query) -> Jvm:
    """The analysed plan of a query, with every choice that Spark leaves open made."""
    from pyspark.errors import PySparkException

    try:
        parsed = catalyst.session.sessionState().sqlParser().parsePlan(query.text)
        analysed = catalyst.dataset(parsed).queryExecution().analyzed()
    except PySparkException as error:
        raise statement_error(query, error) from None
    return Determinism(catalyst, refuser(query)).pinned(analysed)


def refuser(query: Query) -> Refuse:
    """A function that refuses a Catalyst node, underlining the SQL that it came from."""

    def refuse(node: Jvm, reason: str, *, hint: str | None = None) -> NoReturn:
        start, end = _place(node)
        if start is None or end is None:
            raise StatementError(reason, detail=f"in {readable(node)[:200]}", hint=hint)
        raise _pointing(query, start, end, reason, hint)

    return refuse


def _pointing(query: Query, start: int, end: int, reason: str, hint: str | None) -> StatementError:
    return pointing(query.source or query.text, query.start + start, query.start + end, reason, hint=hint)


def _place(node: Jvm) -> tuple[int | None, int | None]:
    """Where in the SQL a node came from; its children are asked where it does not know itself."""
    origin = node.origin()
    start, stop = origin.startIndex(), origin.stopIndex()
    if start.isDefined() and stop.isDefined():
        return start.get(), stop.get() + 1
    for child in items(node.children()):
        place = _place(child)
        if place[0] is not None:
            return place
    return None, None


def statement_error(query: Query, error: Exception) -> HeadwaterError:
    """Spark's own refusal of a query, in our form."""
    from pyspark.errors import PySparkException

    assert isinstance(error, PySparkException)
    message = error.getMessage() or str(error)
    first = message.strip().splitlines()[0]
    if first.startswith("[") and "] " in first:
        first = first.split("] ", 1)[1]
    first = first.split(" SQLSTATE:")[0].rstrip(".; ")
    for context in error.getQueryContext() or []:
        start, stop = context.startIndex(), context.stopIndex()
        if 0 <= start <= stop < len(query.text):
            return _pointing(query, start, stop + 1, f"Spark: {first}", None)
    if (at := _POSITION.search(str(error))) is not None:
        start = sum(len(line) + 1 for line in query.text.split("\n")[: int(at[1]) - 1]) + int(at[2])
        return _pointing(query, start, start + 1, f"Spark: {first}", None)
    return StatementError(f"Spark: {first}", detail="\n".join(message.strip().splitlines()[1:8]) or None)
