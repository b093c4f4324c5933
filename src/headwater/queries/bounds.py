"""What bounds the state of a view: the tables that it reads, or nothing, because it grows with a topic that only grows.

A topic without a key has a history and no current rows, so whatever is kept of each of its rows, or of each of their
keys, is kept forever, unless rows that come too late are left out: then it can be let go of once the watermark has passed.
Everything else is bounded: a table by the number of its keys, a single group by being one.
`kept` says of every operator of a graph what its state grows with; linear operators have none. The rows that a view
shows are its result and not counted here: a view that is a filtered topic is as long as the topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from headwater.queries import graph as g


@dataclass(frozen=True)
class Extent:
    """How many rows something can have."""

    topics: frozenset[str] = frozenset()
    """Topics without a key: it has more rows with every record of them."""
    tables: frozenset[str] = frozenset()
    """Topics with a key: it has no more rows than they and each other have together."""
    passing: frozenset[str] = frozenset()
    """Topics without a key whose watermarks pass what it has, after which it is let go of."""

    def __or__(self, other: Extent) -> Extent:
        return Extent(self.topics | other.topics, self.tables | other.tables, self.passing | other.passing)

    @property
    def bounded(self) -> bool:
        """Whether no history lets it grow."""
        return not self.topics


@dataclass(frozen=True)
class Kept:
    """What one operator keeps."""

    node: g.Node
    what: str
    """In words, after "it keeps"."""
    instead: str
    """The nearest thing that keeps less."""
    extent: Extent


ONE = Extent()
"""No more rows than the query itself says."""


def topic_extent(name: str, *, keyed: bool) -> Extent:
    """Of a topic that a view reads."""
    return Extent(tables=frozenset([name])) if keyed else Extent(topics=frozenset([name]))


def rows(node: g.Node, sources: Mapping[str, Extent]) -> Extent:
    """How many rows a node has, by the extents of the topics and views that its graph reads."""
    match node:
        case g.Source():
            return sources[node.name]
        case g.Constant():
            return ONE
        case (
            g.Aggregate(keys=0)
            | g.Regroup(whole=True)
            | g.Rank(key=(), function="row_number")
            | g.Fold(key=())
        ):
            return ONE
        case g.Join(kind="semi" | "anti" | "existence"):
            return rows(node.left, sources)
    found = ONE
    for child in node.inputs:
        found |= rows(child, sources)
    return found


def kept(
    root: g.Node, sources: Mapping[str, Extent], expiring: Mapping[int, frozenset[str]] | None = None
) -> Iterator[Kept]:
    """What the operators of a graph keep, those that changes reach first before the others.

    `expiring`: by the identity of a node, the topics whose watermarks let it forget.
    """
    for part in _kept(root, sources):
        passing = (expiring or {}).get(id(part.node))
        extent = part.extent if passing is None else Extent(tables=part.extent.tables, passing=passing)
        yield replace(part, extent=extent)


def _kept(root: g.Node, sources: Mapping[str, Extent]) -> Iterator[Kept]:
    for node in g.walk(root):
        match node:
            case g.Source() | g.Constant() | g.Map() | g.Union():
                continue
            case g.Aggregate():
                yield from _aggregate(node, rows(node.input, sources))
            case g.Join():
                for side, extent in ((s, rows(s, sources)) for s in node.inputs):
                    what = (
                        f"the rows of {_named(side)}, to be found by rows of the other side that come later"
                    )
                    yield Kept(node, what, "join topics that have a PRIMARY KEY", extent)
            case g.Rank():
                what = "every row, since one that is first may go, and the next takes its place"
                instead = (
                    "min, max, min_by and max_by without GROUP BY keep one row of a topic that only grows"
                )
                yield Kept(node, what, instead, rows(node.input, sources))
            case g.Slide():
                what = "every row, to be found by rows that come later and are near it in time"
                instead = "GROUP BY window(...) keeps a row for every window"
                yield Kept(node, what, instead, rows(node.input, sources))
            case g.Sessions():
                what = "every row, since its session changes with the rows before and after it"
                instead = (
                    "count, sum, avg, min and max over a topic without a PRIMARY KEY keep the sessions alone"
                )
                yield Kept(node, what, instead, rows(node.input, sources))
            case g.SessionAggregate():
                instead = "the same over a topic with a PRIMARY KEY"
                yield Kept(node, "a row for every session", instead, rows(node.input, sources))
            case g.Close():
                topics = frozenset(topic for domain in node.domains for topic in domain)
                yield Kept(node, "rows that are not final yet", "", Extent(passing=topics))
            case g.Versions():
                instead = "late = 'divert', late = 'drop' or correct_for lets go of versions that have ended"
                what = "versions of rows, to be found by rows of another side, or ended by others"
                yield Kept(node, what, instead, rows(node.input, sources))
            case g.Fold():
                instead = "the same over a topic with a PRIMARY KEY"
                yield Kept(node, "a state for every key", instead, rows(node, sources))
            case g.Meet():
                what = "every version of every stored query, for documents that come"
                yield Kept(node, what, "", rows(node.queries, sources))
                if node.backfill:
                    what = "documents, for stored queries that come later with backfill"
                    instead = "the same WITH (backfill = FALSE)"
                    yield Kept(node, what, instead, rows(node.documents, sources))
            case g.Regroup(evaluate=g.RowPattern()):
                instead = "GROUP BY window(...) keeps a row for every window"
                what = "every row of its partitions, since any may be part of another match when others come"
                yield Kept(node, what, instead, rows(node.input, sources))
            case g.Regroup():
                instead = "count, sum, avg, min and max without GROUP BY keep one row"
                yield Kept(node, "every row of its groups", instead, rows(node.input, sources))


def _aggregate(node: g.Aggregate, extent: Extent) -> Iterator[Kept]:
    if node.keys:
        what = "a row for every group" if node.functions or node.customs else "every different row"
        instead = "the same without GROUP BY or DISTINCT, or over a topic with a PRIMARY KEY"
        if any(is_window(node.schema.field(key).type) for key in range(node.keys)):
            instead = "late = 'divert', late = 'drop' or correct_for lets go of windows that are closed"
        yield Kept(node, what, instead, extent)
        return
    yield Kept(node, "one row", "", ONE)
    for function in node.functions:
        if function.ordered:
            what = f"every value of {function.text}, since the one that it shows may go"
            yield Kept(node, what, "count, sum and avg keep one value", extent)


def is_window(kind: pa.DataType) -> bool:
    """Whether a column of this type has windows: from when, and until when."""
    return pa.types.is_struct(kind) and [field.name for field in kind] == ["start", "end"]


def _named(side: g.Node) -> str:
    names = dict.fromkeys(s.name for s in g.sources(side))
    return " and ".join(names) or "the constants"


def told(
    root: g.Node, sources: Mapping[str, Extent], expiring: Mapping[int, frozenset[str]] | None = None
) -> str:
    """What bounds the state of a graph, or what it grows with, for people; `expiring` as for `kept`."""
    parts = list(kept(root, sources, expiring))
    if not parts:
        return "none: each row is looked at alone"
    whole = ONE
    for part in parts:
        whole |= part.extent
    if whole.topics:
        most = next(p for p in parts if p.extent.topics)
        return f"grows with {', '.join(sorted(whole.topics))}: it keeps {most.what}"
    if whole.passing:
        what, topics = next(p.what for p in parts if p.extent.passing), " and ".join(sorted(whole.passing))
        more = f", and bounded by {', '.join(sorted(whole.tables))}" if whole.tables else ""
        return f"bounded by time: it keeps {what}, until the watermark of {topics} has passed{more}"
    if not whole.tables:
        return "bounded by the query: one row for each group without keys"
    what = "table" if len(whole.tables) == 1 else "tables"
    return f"bounded by {what} {', '.join(sorted(whole.tables))}"
