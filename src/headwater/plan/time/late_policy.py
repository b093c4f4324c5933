"""The late-row policy of a view, and the plan columns that report late rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.catalog.view_definitions import ViewDefinition, ViewOptions
from headwater.sql.match_recognize_places import has_timeouts

WATERMARK = "_watermark"
POSITION = ("_partition", "_offset")
NEEDED = (*POSITION, WATERMARK)
"""The metadata columns of a topic that reports of its late rows need."""
CLOSE = "_close"
DOMAIN = "_domain"
LATE_COLUMNS = (*POSITION, WATERMARK, "_window_start", "_window_end", "_time", "_late")
"""The columns that follow the topic's own columns in a plan of late rows."""


@dataclass(frozen=True)
class Policy:
    """The policy of a view for late rows, and whether it emits only final rows."""

    options: ViewOptions = field(default_factory=ViewOptions)
    emits: bool = False
    replayed: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Late rows that were replayed: see `ViewDefinition.replayed`."""
    times_out: bool = False
    """Whether the query emits timed-out matches, which depend on watermarks."""

    @staticmethod
    def of(view: ViewDefinition) -> Policy:
        """Return the policy of a view."""
        return Policy(view.options, view.emit_on_close, view.replayed, has_timeouts(view.query))

    @property
    def leaves_out(self) -> bool:
        """Whether the view drops late rows."""
        return self.options.late != "correct" or self.options.correct_for_us is not None

    @property
    def is_plain(self) -> bool:
        """Whether the policy has no effect on the plan."""
        return not self.leaves_out and not self.emits and not self.times_out

    @property
    def option(self) -> str:
        """The SQL option that set the policy, for error messages."""
        if self.options.late != "correct":
            return f"late = '{self.options.late}'"
        return "correct_for" if self.leaves_out else "EMIT ON WINDOW CLOSE"
