"""Each kind of source and sink has what its row says, and its row all that is asked of it."""

from __future__ import annotations

import pytest

from headwater.catalog.connector_kinds import SINK_KINDS, SOURCE_KINDS, ConnectorKind
from headwater.core.extras import EXTRAS

ROWS = [pytest.param(row, id=row.made_by) for row in (*SOURCE_KINDS.values(), *SINK_KINDS.values())]


@pytest.mark.parametrize("row", ROWS)
def test_its_class_makes_one_of_a_declaration(row: ConnectorKind) -> None:
    assert callable(row.load().declared)
    assert len({option.name for option in row.options}) == len(row.options)


@pytest.mark.parametrize("row", [pytest.param(row, id=name) for name, row in SINK_KINDS.items()])
def test_a_sink_says_what_is_promised_of_it(row: ConnectorKind) -> None:
    assert row.load().guarantee


def test_extras_are_known() -> None:
    assert {row.extra for row in (*SOURCE_KINDS.values(), *SINK_KINDS.values())} - {None} <= set(EXTRAS)
