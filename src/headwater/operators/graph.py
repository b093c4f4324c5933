"""The operator graph of a view: its SELECT as a tree of operators that can be maintained incrementally.

A view is a tree of nodes over sources (topics and other views). *Linear* nodes (`Map`, `Union`) process each row of a
change independently. `AggregateNode`, `Join`, `Rank` and `Regroup` keep arrangements of their inputs. Expressions are
Spark's own and opaque here: they have a human-readable text, a type, and a handle that only the runtime interprets.

Nodes are values: they have no state and no reference to Spark, and can be printed (`graph_text`) and compared by shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from headwater.operators.match_recognize.spec import MatchSpec

JoinKind = Literal["inner", "left", "right", "full", "semi", "anti", "existence"]
RankFunction = Literal["row_number", "rank", "dense_rank"]


@dataclass(frozen=True)
class Expression:
    """A deterministic expression over the columns of its input."""

    text: str
    type: pa.DataType
    column: int | None
    """Index of the input column, if the expression is a plain column reference."""
    handle: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class Filter:
    """Keeps the rows for which the condition is true."""

    condition: Expression


@dataclass(frozen=True)
class Project:
    """Maps rows to rows of expressions, one to one."""

    expressions: tuple[Expression, ...]


@dataclass(frozen=True)
class Expand:
    """Maps each row to several rows of expressions: grouping sets, hopping windows."""

    projections: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True)
class Generate:
    """Maps each row to a row per element of a generator: the kept input columns, then those of the generator."""

    text: str
    kind: Literal["explode", "posexplode", "inline"]
    argument: Expression
    outer: bool
    keep: tuple[int, ...]


@dataclass(frozen=True)
class Replicate:
    """Repeats each row as often as a count column says: EXCEPT ALL, INTERSECT ALL."""

    count: Expression
    keep: tuple[Expression, ...]


@dataclass(frozen=True)
class UdfCall:
    """Appends the result of a user-defined function to the input's columns."""

    name: str
    signature: str
    text: str
    args: tuple[Expression, ...]
    place: int
    """Index of the appended column."""
    type: pa.DataType
    handle: Any = field(compare=False, repr=False)


Step = Filter | Project | Expand | Generate | Replicate | UdfCall


@dataclass(frozen=True)
class OrderKey:
    """One key of an ORDER BY, over a column of the input."""

    column: int
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class MergeableFunction:
    """A mergeable aggregate function, with the input columns that it reads."""

    kind: str
    text: str
    args: tuple[int, ...]
    filter: int | None
    ordered: bool
    """Whether the function needs its group's values in order (min and max under retraction), not only a running value."""
    sketch: Any = field(default=None, repr=False)
    """The sketch that replaces the values, for functions of kind `sketch`; identified by `text`."""


@dataclass(frozen=True)
class CustomFunction:
    """A user-defined aggregate function, with the input columns that it reads."""

    name: str
    signature: str
    text: str
    args: tuple[int, ...]
    handle: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class SourceNode:
    """A topic or another view, with the columns that are read from it."""

    name: str
    columns: tuple[int, ...]
    schema: pa.Schema
    append_only: bool
    inputs: tuple[Node, ...] = ()
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """Names of the metadata columns of a topic's records, which follow the other columns."""


@dataclass(frozen=True)
class Constant:
    """Literal rows of the SQL text: present from the first tick and never changed."""

    rows: pa.RecordBatch = field(compare=False)
    schema: pa.Schema
    append_only: bool = True
    inputs: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Map:
    """Linear steps applied in sequence to each row of a change independently."""

    input: Node
    steps: tuple[Step, ...]
    schema: pa.Schema

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)

    @property
    def append_only(self) -> bool:
        """Whether the output is never retracted."""
        return self.input.append_only


@dataclass(frozen=True)
class Union:
    """Concatenates the rows of the inputs (UNION ALL)."""

    inputs: tuple[Node, ...]
    schema: pa.Schema

    @property
    def append_only(self) -> bool:
        """Whether the output is never retracted."""
        return all(i.append_only for i in self.inputs)


@dataclass(frozen=True)
class AggregateNode:
    """One row per group: `keys` columns, then each function's buffer, from which Spark computes the result, then the
    values of user-defined functions."""

    input: Node
    keys: int
    functions: tuple[MergeableFunction, ...]
    schema: pa.Schema
    append_only: bool = False
    customs: tuple[CustomFunction, ...] = ()

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class MatchRange:
    """The range condition of a join: the left row's point lies in the right row's range, both ends included."""

    point: int
    low: int
    high: int
    width: int | None
    """Maximum distance of the two ends; None if the ranges of one key do not overlap."""
    ends: tuple[int, ...] = ()
    """Columns of the right side that determine only the end of a range, if nothing else in the condition reads them."""


@dataclass(frozen=True)
class Join:
    """Joins two inputs on equal keys; the rest of the condition is evaluated over the pair."""

    left: Node
    right: Node
    kind: JoinKind
    left_key: tuple[int, ...]
    right_key: tuple[int, ...]
    condition: Expression | None
    schema: pa.Schema
    at_most_one: bool = False
    """Whether the query fails if the right side has more than one row: a scalar subquery."""
    range: MatchRange | None = field(default=None, repr=False)
    """A range condition that pairs must satisfy, implied by `condition`; only an access path, `condition` still decides."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.left, self.right)

    @property
    def append_only(self) -> bool:
        """Whether the output is never retracted."""
        return self.kind in ("inner", "semi") and self.left.append_only and self.right.append_only


@dataclass(frozen=True)
class Rank:
    """The rows of each group whose rank lies in (offset, limit]: top-k."""

    input: Node
    key: tuple[int, ...]
    order: tuple[OrderKey, ...]
    function: RankFunction
    limit: int
    offset: int
    shows_rank: bool
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class Regroup:
    """Any function of a whole group, recomputed by Spark for the groups that a change touches."""

    input: Node
    key: tuple[int, ...]
    text: str
    evaluate: Any = field(compare=False, repr=False)
    schema: pa.Schema
    whole: bool = False
    """Whether there is a single group that exists even when it is empty: an aggregate without GROUP BY."""
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class Waits:
    """Delays rows until the minimum watermark of some topics has reached their time plus the slack."""

    topics: tuple[str, ...]
    slack_us: int


@dataclass(frozen=True)
class RowPattern:
    """The row pattern that a Regroup matches in its groups. `spec` defines the inputs of the expressions."""

    spec: MatchSpec = field(compare=False, repr=False)
    expressions: tuple[Expression, ...]
    text: str
    """The clause as written in the SQL."""
    waits: Waits | None = None
    """Delay of timed-out matches, if these are output along with other matches, which are output at once."""


@dataclass(frozen=True)
class FrameFunction:
    """A function over the frame [time + low, time + high] of each row, both ends included."""

    function: MergeableFunction
    low: int
    high: int


@dataclass(frozen=True)
class Slide:
    """Every row, with functions over the rows of its key within a time range around it.

    The functions' values follow the row's columns: buffers from which Spark computes the results or, if functions have
    no buffers, the results that Spark computes from the rows.
    """

    input: Node
    key: tuple[int, ...]
    time: int
    preceding: int
    following: int
    """How far frames reach back (`preceding`) and ahead (`following`), in units of the time's type."""
    text: str
    framed: tuple[FrameFunction, ...]
    schema: pa.Schema
    evaluate: Any = field(default=None, compare=False, repr=False)
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class Sessions:
    """Every row, with its own interval, a struct of start and end, replaced by that of its session."""

    input: Node
    key: tuple[int, ...]
    column: int
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class SessionAggregate:
    """One row per group, as in `AggregateNode`, where one of the `keys` columns is the session interval of `Sessions`.

    The input is append-only, so that its rows need not be stored.
    """

    input: Node
    keys: int
    column: int
    functions: tuple[MergeableFunction, ...]
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class VersionsNode:
    """Records of a table, each followed by the begin of the next record of its key.

    That column has the type of the record's time, and is NULL for the last record. Tombstones end other records and are
    not output.
    """

    input: Node
    key: tuple[int, ...]
    begin: int
    offset: int
    op: int
    """Columns of the begin of a record (`begin`), its log offset (`offset`), and its operation (`op`: upsert or tombstone)."""
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class FoldNode:
    """One row per key: the state computed by a user-defined step from the key's rows, in the order of their arrival."""

    input: Node
    key: tuple[int, ...]
    name: str
    signature: str
    schema: pa.Schema
    handle: Any = field(compare=False, repr=False)
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


@dataclass(frozen=True)
class Percolate:
    """Pairs of a stored query and a document that matches it (percolator).

    A pair has the columns of the query, then columns of the document, in the order defined by `handle`. Queries are the
    records of their topic, documents the current rows of theirs.
    """

    documents: Node
    queries: Node
    text: str
    schema: pa.Schema
    handle: Any = field(compare=False, repr=False)
    backfill: bool = True
    """Whether documents are stored, so that later queries are matched against them too."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes: the queries first, so that an unreadable query is detected before documents are matched."""
        return (self.queries, self.documents)

    @property
    def append_only(self) -> bool:
        """Whether the output is never retracted: a match of a document at its own log position is permanent."""
        return self.documents.append_only


@dataclass(frozen=True)
class Close:
    """The rows that are final: those whose time has been reached by the watermarks of their domain.

    The last column but one of the input is the time, the last one the number of the domain. Neither is output.
    """

    input: Node
    domains: tuple[tuple[str, ...], ...]
    """Topics of each domain, by domain number."""
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """Input nodes."""
        return (self.input,)


Node = (
    SourceNode
    | Constant
    | Map
    | Union
    | AggregateNode
    | Join
    | Rank
    | Regroup
    | Slide
    | Sessions
    | SessionAggregate
    | VersionsNode
    | FoldNode
    | Percolate
    | Close
)


def walk(node: Node) -> Iterator[Node]:
    """Yield all nodes of a graph, inputs first: the order in which a change passes through them."""
    for child in node.inputs:
        yield from walk(child)
    yield node


def sources(node: Node) -> Sequence[SourceNode]:
    """Return the sources that a graph reads, one per mention."""
    return [n for n in walk(node) if isinstance(n, SourceNode)]
