"""What a view does with late rows, and the columns of a plan that tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.catalog.definitions import ViewDefinition, ViewOptions
from headwater.sql.match_recognize_places import has_timeouts

WATERMARK = "_watermark"
POSITION = ("_partition", "_offset")
NEEDED = (*POSITION, WATERMARK)
"""The hidden columns of a topic that its late rows are told by."""
CLOSE = "_close"
DOMAIN = "_domain"
LATE_COLUMNS = (*POSITION, WATERMARK, "_window_start", "_window_end", "_time", "_late")
"""What a plan of late rows has after the topic's own columns."""


@dataclass(frozen=True)
class Policy:
    """What a view does with late rows, and whether it shows only final ones."""

    options: ViewOptions = field(default_factory=ViewOptions)
    emits: bool = False
    replayed: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Late rows that were given back: see `ViewDefinition.replayed`."""
    times_out: bool = False
    """Whether its query shows matches that ran out of time, which watermarks decide."""

    @staticmethod
    def of(view: ViewDefinition) -> Policy:
        """That of a view."""
        return Policy(view.options, view.emit_on_close, view.replayed, has_timeouts(view.query))

    @property
    def leaves_out(self) -> bool:
        """Whether there are rows that it does not take."""
        return self.options.late != "correct" or self.options.correct_for_us is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is as if there were none."""
        return not self.leaves_out and not self.emits and not self.times_out

    @property
    def told(self) -> str:
        """How the user has said it."""
        if self.options.late != "correct":
            return f"late = '{self.options.late}'"
        return "correct_for" if self.leaves_out else "EMIT ON WINDOW CLOSE"
