"""Which columns depend on private values, and by which others what is held of somebody is found."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater.engine.deletion.private_dataflow import columns_from_private, readers, shown_by, unfiltered
from headwater.operators import graph as g

TEXTS = pa.list_(pa.string())
CLICKS = pa.schema([("user", pa.string()), ("ip", TEXTS), ("url", pa.string()), ("tags", TEXTS)])
SOURCE = g.SourceNode("clicks", (0, 1, 2, 3), CLICKS, append_only=True)
USER, IP, URL, TAGS = range(4)


def private(source: g.SourceNode) -> frozenset[int]:
    return frozenset({IP}) if source.name == "clicks" else frozenset()


def column(place: int) -> g.Expression:
    return g.Expression(CLICKS.names[place], CLICKS.types[place], place, None)


def projected(*places: int, below: g.Node = SOURCE) -> g.Map:
    schema = pa.schema([CLICKS.field(place) for place in places])
    return g.Map(below, (g.Project(tuple(map(column, places))),), schema)


def aggregated(below: g.Node, keys: int) -> g.AggregateNode:
    return g.AggregateNode(below, keys, (), below.schema)


def test_columns_that_are_made_of_private_ones_are_private() -> None:
    assert columns_from_private(projected(URL, IP), private) == frozenset({1})
    assert columns_from_private(projected(URL, USER), private) == frozenset()
    both = g.Union((projected(URL, IP), projected(IP, URL)), CLICKS)
    assert columns_from_private(both, private) == frozenset({0, 1})
    other = g.SourceNode("plain", (0,), CLICKS, append_only=True)
    assert columns_from_private(g.Union((other, projected(URL, IP)), CLICKS), private) == frozenset({1})


def test_filters_that_look_at_private_values_are_left_out() -> None:
    steps = (g.Filter(column(IP)), g.Filter(column(URL)), g.Project((column(URL), column(IP))))
    node = g.Map(SOURCE, (*steps, g.Filter(column(USER)), g.Filter(column(IP))), CLICKS)
    # behind the projection the first column is the url, and the second the address
    assert unfiltered(node, private).steps == (*steps[1:], g.Filter(column(USER)))
    assert unfiltered(projected(URL), private) == projected(URL)


@pytest.mark.parametrize(("argument", "found"), [(IP, None), (TAGS, frozenset({0}))])
def test_how_many_rows_there_are_may_depend_on_a_private_value(
    argument: int, found: frozenset[int] | None
) -> None:
    step = g.Generate("explode", "explode", column(argument), outer=False, keep=(IP, URL))
    assert columns_from_private(g.Map(SOURCE, (step,), CLICKS), private) == found
    copies = g.Replicate(column(USER), (column(URL),))
    assert columns_from_private(g.Map(SOURCE, (copies,), CLICKS), private) is None


def test_what_is_held_is_found_by_keys_that_are_not_private() -> None:
    by_url = aggregated(projected(URL, IP), 1)
    assert readers(by_url, private) == [by_url]
    assert readers(aggregated(projected(IP, URL), 1), private) is None
    everything = aggregated(projected(IP), 0)
    assert readers(everything, private) == [everything]
    join = g.Join(SOURCE, SOURCE, "inner", (USER,), (USER,), None, CLICKS)
    assert readers(aggregated(join, 1), private) == [join]  # what is above it is given what changes
    assert readers(g.Join(SOURCE, SOURCE, "inner", (USER,), (IP,), None, CLICKS), private) is None
    assert readers(g.Join(SOURCE, SOURCE, "inner", (), (), None, CLICKS), private) is None
    assert readers(g.Union((SOURCE, by_url), CLICKS), private) is None


def test_rows_are_found_by_what_they_show() -> None:
    shown = projected(IP, URL)
    assert readers(shown, private) == [shown]
    assert shown_by(shown, private) == (1,)
    assert readers(projected(IP), private) is None
    assert readers(g.SourceNode("plain", (0,), CLICKS, append_only=True), private) == []
