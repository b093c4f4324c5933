"""The operator graph of a view: what its SELECT means, as the few kinds of operator that can be kept incrementally.

A view is a tree of nodes over sources (topics and other views). *Linear* nodes (`Map`, `Union`) act on each row of a
change alone. `AggregateNode`, `Join`, `Rank` and `Regroup` keep arrangements of their inputs. Expressions are Spark's own
and opaque here: they have a text for people, a type, and a handle that only the runtime understands.

Nodes are values: they know no state and no Spark, and can be printed (`describe`) and compared by shape.
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
    """The input column that it is, where it is nothing more than one."""
    handle: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class Filter:
    """Keeps the rows for which the condition is true."""

    condition: Expression


@dataclass(frozen=True)
class Project:
    """A row of expressions for each row."""

    expressions: tuple[Expression, ...]


@dataclass(frozen=True)
class Expand:
    """Several rows of expressions for each row: grouping sets, hopping windows."""

    projections: tuple[tuple[Expression, ...], ...]


@dataclass(frozen=True)
class Generate:
    """The input's columns that are kept, then those of a generator, a row per element."""

    text: str
    kind: Literal["explode", "posexplode", "inline"]
    argument: Expression
    outer: bool
    keep: tuple[int, ...]


@dataclass(frozen=True)
class Replicate:
    """As many copies of a row as a column says: EXCEPT ALL, INTERSECT ALL."""

    count: Expression
    keep: tuple[Expression, ...]


@dataclass(frozen=True)
class UdfCall:
    """The input's columns, then one more: what a user's function makes of its arguments."""

    name: str
    signature: str
    text: str
    args: tuple[Expression, ...]
    place: int
    """The column that it adds."""
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
    """A mergeable aggregate function, by the columns of the input that it reads."""

    kind: str
    text: str
    args: tuple[int, ...]
    filter: int | None
    ordered: bool
    """Whether it needs its group's values in order (min and max under retraction), not only a running value."""
    sketch: Any = field(default=None, repr=False)
    """What it keeps instead of the values, if it is of the kind `sketch`; told by its text."""


@dataclass(frozen=True)
class CustomFunction:
    """A user's aggregate function, by the columns of the input that it reads."""

    name: str
    signature: str
    text: str
    args: tuple[int, ...]
    handle: Any = field(compare=False, repr=False)


@dataclass(frozen=True)
class SourceNode:
    """A topic, or another view, by the columns that are read of it."""

    name: str
    columns: tuple[int, ...]
    schema: pa.Schema
    append_only: bool
    inputs: tuple[Node, ...] = ()
    hidden: tuple[str, ...] = field(default=(), repr=False)
    """Those that come after the columns: of a topic's records, by name."""


@dataclass(frozen=True)
class Constant:
    """Rows that stand in the SQL itself: there from the first tick, never changing."""

    rows: pa.RecordBatch = field(compare=False)
    schema: pa.Schema
    append_only: bool = True
    inputs: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Map:
    """Linear steps, one after the other, on each row of a change alone."""

    input: Node
    steps: tuple[Step, ...]
    schema: pa.Schema

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)

    @property
    def append_only(self) -> bool:
        """Whether it never retracts."""
        return self.input.append_only


@dataclass(frozen=True)
class Union:
    """All rows of all inputs."""

    inputs: tuple[Node, ...]
    schema: pa.Schema

    @property
    def append_only(self) -> bool:
        """Whether it never retracts."""
        return all(i.append_only for i in self.inputs)


@dataclass(frozen=True)
class AggregateNode:
    """A row per group: `keys` columns, then each function's buffer, from which Spark computes the result, then the
    values of users' functions."""

    input: Node
    keys: int
    functions: tuple[MergeableFunction, ...]
    schema: pa.Schema
    append_only: bool = False
    customs: tuple[CustomFunction, ...] = ()

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class MatchRange:
    """Where the matches of a join are: the left row's point lies in the right row's range, to which both ends belong."""

    point: int
    low: int
    high: int
    width: int | None
    """The greatest distance of the two ends; None if the ranges of one key do not overlap."""
    ends: tuple[int, ...] = ()
    """The columns of the right side that tell where a range ends, if the condition asks nothing else of them."""


@dataclass(frozen=True)
class Join:
    """Two inputs on equal keys, with the rest of the condition over the pair."""

    left: Node
    right: Node
    kind: JoinKind
    left_key: tuple[int, ...]
    right_key: tuple[int, ...]
    condition: Expression | None
    schema: pa.Schema
    at_most_one: bool = False
    """Whether the right side must have at most one row, or the query fails: a scalar subquery."""
    range: MatchRange | None = field(default=None, repr=False)
    """What the condition implies of pairs, by columns that it was computed in; it tells where to look, and nothing else."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.left, self.right)

    @property
    def append_only(self) -> bool:
        """Whether it never retracts."""
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
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class Regroup:
    """Any function of a whole group, computed again by Spark for the groups that a change touches."""

    input: Node
    key: tuple[int, ...]
    text: str
    evaluate: Any = field(compare=False, repr=False)
    schema: pa.Schema
    whole: bool = False
    """Whether there is one group that is there even when it is empty: an aggregate without GROUP BY."""
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class Waits:
    """Rows are shown once the least watermark of some topics has reached their time and the slack."""

    topics: tuple[str, ...]
    slack_us: int


@dataclass(frozen=True)
class RowPattern:
    """What a Regroup finds in its groups: matches of a row pattern. Expressions are over inputs that `spec` tells."""

    spec: MatchSpec = field(compare=False, repr=False)
    expressions: tuple[Expression, ...]
    text: str
    """The clause, as it was written."""
    waits: Waits | None = None
    """If matches that ran out of time are shown beside others, which are shown at once: when."""


@dataclass(frozen=True)
class FrameFunction:
    """A function over the frame [time + low, time + high] of each row, both ends included."""

    function: MergeableFunction
    low: int
    high: int


@dataclass(frozen=True)
class Slide:
    """Every row, with functions over the rows of its key that are near it in time behind it: their buffers, from which
    Spark computes the results, or, without functions that have one, the results that Spark computes from the rows."""

    input: Node
    key: tuple[int, ...]
    time: int
    preceding: int
    following: int
    """How far frames reach back and ahead, in units of the time's type."""
    text: str
    framed: tuple[FrameFunction, ...]
    schema: pa.Schema
    evaluate: Any = field(default=None, compare=False, repr=False)
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class Sessions:
    """Every row, with the interval of its session in place of its own, which is a struct of start and end."""

    input: Node
    key: tuple[int, ...]
    column: int
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class SessionAggregate:
    """A row per group, as `AggregateNode` has it, one of whose `keys` columns is that of `Sessions`; over rows that are never
    taken back, and so need not be kept."""

    input: Node
    keys: int
    column: int
    functions: tuple[MergeableFunction, ...]
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class VersionsNode:
    """Records of a table, each with when the next one of its key begins behind it: a column of the time's type, NULL for
    the last. Tombstones end others and are none themselves."""

    input: Node
    key: tuple[int, ...]
    begin: int
    offset: int
    op: int
    """The columns that say when a record begins, where it is in the log, and whether it is a tombstone."""
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class FoldNode:
    """A row per key: the state that a user's step has made of the key's rows, in the order in which they came."""

    input: Node
    key: tuple[int, ...]
    name: str
    signature: str
    schema: pa.Schema
    handle: Any = field(compare=False, repr=False)
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
        return (self.input,)


@dataclass(frozen=True)
class Meet:
    """Pairs of a stored query and a document that meets it: what is told of the query, then columns of the document, as
    `handle` puts them. Queries are records of their topic, documents the rows that stand in theirs."""

    documents: Node
    queries: Node
    text: str
    schema: pa.Schema
    handle: Any = field(compare=False, repr=False)
    backfill: bool = True
    """Whether documents are kept, for queries that come later and are asked of them too."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads: the queries first, so that one that cannot be read is found before documents are matched."""
        return (self.queries, self.documents)

    @property
    def append_only(self) -> bool:
        """Whether it never retracts: what a document meets at its own place it meets for good."""
        return self.documents.append_only


@dataclass(frozen=True)
class Close:
    """The rows that are final: those whose time, in the last column but one of the input, the watermarks have reached;
    the last column is the number of the domain whose watermarks these are. Neither is shown."""

    input: Node
    domains: tuple[tuple[str, ...], ...]
    """Topics, by the number of their domain."""
    schema: pa.Schema
    append_only: bool = False

    @property
    def inputs(self) -> tuple[Node, ...]:
        """What it reads."""
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
    | Meet
    | Close
)


def walk(node: Node) -> Iterator[Node]:
    """Every node below and including this one, inputs first: the order in which a change passes them."""
    for child in node.inputs:
        yield from walk(child)
    yield node


def sources(node: Node) -> Sequence[SourceNode]:
    """The sources that a graph reads, one per mention."""
    return [n for n in walk(node) if isinstance(n, SourceNode)]
