"""The registry of operator kinds: one line per kind, and the only list of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.engine.dataflow.operators.aggregate import AggregateKind
from headwater.engine.dataflow.operators.close import CloseKind
from headwater.engine.dataflow.operators.fold import FoldKind
from headwater.engine.dataflow.operators.join import JoinKind
from headwater.engine.dataflow.operators.linear_nodes import ConstantKind, MapKind, SourceNodeKind, UnionKind
from headwater.engine.dataflow.operators.match_recognize import RowPatternKind
from headwater.engine.dataflow.operators.operator_kind import OperatorKind
from headwater.engine.dataflow.operators.percolator import PercolatorKind
from headwater.engine.dataflow.operators.rank import RankKind
from headwater.engine.dataflow.operators.regroup import RegroupKind
from headwater.engine.dataflow.operators.session_aggregate import SessionAggregateKind
from headwater.engine.dataflow.operators.sessions import SessionsKind
from headwater.engine.dataflow.operators.slide import SlideKind
from headwater.engine.dataflow.operators.versions import VersionsKind
from headwater.operators import graph as g

KINDS: Mapping[type, OperatorKind[Any]] = {
    g.SourceNode: SourceNodeKind(),
    g.Constant: ConstantKind(),
    g.Map: MapKind(),
    g.Union: UnionKind(),
    g.AggregateNode: AggregateKind(),
    g.Join: JoinKind(),
    g.Rank: RankKind(),
    g.Regroup: RegroupKind(),
    g.RowPattern: RowPatternKind(),
    g.Slide: SlideKind(),
    g.Sessions: SessionsKind(),
    g.SessionAggregate: SessionAggregateKind(),
    g.VersionsNode: VersionsKind(),
    g.FoldNode: FoldKind(),
    g.Percolate: PercolatorKind(),
    g.Close: CloseKind(),
}
"""By the class of the node. MATCH_RECOGNIZE is a `Regroup` in the graph; its kind is that of the pattern that it evaluates."""


def kind_of(node: g.Node) -> OperatorKind[Any]:
    """Return the kind of the operator of a node."""
    if isinstance(node, g.Regroup) and isinstance(node.evaluate, g.RowPattern):
        return KINDS[g.RowPattern]
    return KINDS[type(node)]
