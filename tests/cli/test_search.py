"""What `headwater search` shows of the pieces around the words found."""

from __future__ import annotations

import io
import sys

import pyarrow as pa
import pytest

from headwater.cli.commands import search

FOUND = pa.table(
    {
        "id": [1, 2],
        "title": ["Rivers & lakes", None],
        "_score": [2.5, 1.0],
        "_highlight": pa.array([{"title": "<b>Rivers</b> &amp; lakes"}, {"title": None}]),
    }
)


def test_words_found_are_bold_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    search._print_bold(FOUND)
    assert "\x1b[1mRivers\x1b[0m & lakes" in shown.getvalue()
    assert "_highlight" not in shown.getvalue()


def test_elsewhere_the_pieces_are_plain_text() -> None:
    assert search._with_pieces(FOUND).to_pylist() == [
        {"id": 1, "title": "Rivers & lakes", "_score": 2.5},
        {"id": 2, "title": None, "_score": 1.0},
    ]
