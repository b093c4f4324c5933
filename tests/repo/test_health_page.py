"""docs/health.md lists every state of every component, with its severity."""

from __future__ import annotations

from headwater.connectors.health.health import STATES
from tests.repo.tree import ROOT


def test_the_page_lists_every_state_with_its_severity() -> None:
    listed: dict[tuple[str, str], str] = {}
    for line in (ROOT / "docs" / "health.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[1].startswith("`"):
            continue
        for kind in cells[0].removesuffix(" work").split(", "):
            listed[kind, cells[1].strip("`")] = cells[2]
    assert listed == {(kind, state): how for kind, states in STATES.items() for state, how in states.items()}
