"""A handle on one view: what `ws.view(name)` gives."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.arguments import whole_number
from headwater.catalog import ViewDefinition

if TYPE_CHECKING:
    from headwater.runtime.views import Views


class View:
    """One view of a workspace."""

    def __init__(self, views: Views, name: str) -> None:
        self._views = views
        self.name = views.spelled(name)

    def __repr__(self) -> str:
        return f"<View {self.name}>"

    @property
    def definition(self) -> ViewDefinition:
        """What it is declared to be."""
        return self._views.describe(self.name)

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self.definition.columns

    def read(self, *, as_of: int | datetime | None = None) -> pa.Table:
        """Its rows at the newest tick, or at an earlier one."""
        return self._views.contents(self.name, as_of)

    def changes(self, since: int = 0) -> pa.Table:
        """What changed after tick `since`: its columns with `_weight` (+n, -n) and `_tick`, netted per tick."""
        return self._views.changes(self.name, whole_number(since, "since", least=0))

    def rebuild(self) -> list[str]:
        """Have it built anew from the log by the next run, and every view above it with it; says which."""
        return self._views.rebuild(self.name)
