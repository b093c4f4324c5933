"""What is said of an operator whose kind defines nothing but how it is built and called: little, and nothing that is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from headwater.engine.dataflow.facets.column_origins import PLAIN, ColumnOrigin, Subject
from headwater.engine.dataflow.facets.demands import Demand, OperatorOutput, Site, TraceRequest
from headwater.engine.dataflow.facets.kept_state import Extent
from headwater.engine.dataflow.operator_interface import Operator
from headwater.engine.dataflow.operators.operator_kind import BuildContext, OperatorKind
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta

ROW = pa.schema([("a", pa.int64()), ("b", pa.int64())])
CLICKS = g.SourceNode("clicks", (0, 1), ROW, append_only=True)
NODE: Any = SimpleNamespace(inputs=(CLICKS,), schema=ROW)


class BareKind(OperatorKind[Any]):
    def build(self, node: Any, context: BuildContext) -> Operator:
        return Operator()

    def title(self, node: Any) -> str:
        return "bare"


BARE = BareKind()


def output(*values: int) -> OperatorOutput:
    return OperatorOutput(Delta.of(pa.RecordBatch.from_pydict({"a": values, "b": values}, schema=ROW)))


def test_it_keeps_every_row_of_each_input() -> None:
    grows = Extent(topics=frozenset({"clicks"}))
    assert [part.extent for part in BARE.kept_state(NODE, [grows])] == [grows]
    assert BARE.row_extent(NODE, [grows, Extent(tables=frozenset({"users"}))]) == Extent(
        frozenset({"clicks"}), frozenset({"users"})
    )


def test_no_key_is_known_of_it_and_any_column_may_be_private() -> None:
    one = frozenset([frozenset([0])])
    assert BARE.unique_keys(NODE, [one]) == frozenset()
    subject = frozenset({Subject("users", "id")})
    assert BARE.column_origins(NODE, [(PLAIN, PLAIN)]) == (PLAIN, PLAIN)
    private = BARE.column_origins(NODE, [(ColumnOrigin(of=subject), PLAIN)])
    assert all(column.of and not column.identifies for column in private)


def test_a_view_with_it_is_rebuilt_after_a_deletion() -> None:
    assert BARE.retraction(NODE) == "rebuild"
    assert BARE.lookup_keys(NODE) is None


def test_its_rows_come_from_all_rows_of_its_inputs() -> None:
    assert list(BARE.input_slices(NODE, {0: pa.array([1])})) == [{}]
    below = Site(CLICKS, whole=output(1, 2, 3), part=output(2, 9))
    site = Site(NODE, whole=output(7), part=output())
    request = TraceRequest(site, Demand(site.missing, site.excess), {id(CLICKS): below}, evaluator=None)  # type: ignore[arg-type]
    ((asked, demand),) = BARE.trace(NODE, request)
    assert asked is below
    still = demand.open_at(below)
    assert sorted(below.whole.delta.filter(still.need).rows.column("a").to_pylist()) == [1, 3]
    assert below.part.delta.filter(still.bad).rows.column("a").to_pylist() == [9]
