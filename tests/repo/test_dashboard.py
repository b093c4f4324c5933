"""The dashboard in docs/ shows figures that there are."""

import json
import re
from pathlib import Path
from typing import Any

import headwater as hw
from tests.repo.tree import ROOT

DASHBOARD = ROOT / "docs" / "grafana.json"
_METRIC = re.compile(r"\bheadwater_\w+")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def test_every_panel_has_a_title_and_a_unit_of_its_own_place() -> None:
    for panel in panels():
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
    every = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in every)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "no panel lies on another"
    assert max(x for x, _ in cells) < 24


def test_every_metric_of_the_dashboard_is_one_of_a_workspace_and_of_the_page(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", ws.metrics(), re.MULTILINE))
    known = {f"{name}_bucket" if kind == "histogram" else name for name, kind in families.items()}
    shown = {
        name for panel in panels() for target in panel["targets"] for name in _METRIC.findall(target["expr"])
    }
    assert shown <= known, shown - known
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name in (name.removesuffix("_bucket") for name in shown):
        assert name in page or name.startswith("headwater_sink_lag_"), name
