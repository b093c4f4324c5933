"""The dashboard in docs/ shows figures that there are."""

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.core import Metric

import headwater as hw
from headwater.testing import inspect_workspace
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


def test_it_is_what_grafana_takes() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    assert board["title"]
    assert re.fullmatch(r"[\w-]{1,40}", board["uid"])
    assert isinstance(board["schemaVersion"], int)
    assert board["schemaVersion"] >= 36, "from there on a data source is an object with a uid"
    assert {"time", "templating", "annotations", "panels"} <= board.keys()
    (source,) = board["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus"), "who imports it chooses his own"
    for panel in board["panels"]:
        assert panel["type"] in ("row", "stat", "timeseries")
        assert isinstance(panel["id"], int)
        place = panel["gridPos"]
        assert place.keys() == {"x", "y", "w", "h"}
        assert min(place["x"], place["y"]) >= 0 < min(place["w"], place["h"])
        assert panel["type"] != "row" or place["w"] == 24
    for panel in panels():
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for asked in (panel, *panel["targets"]):
            uid = f"${{{source['name']}}}"
            assert asked["datasource"] == {"type": "prometheus", "uid": uid}, panel["title"]


def test_every_label_of_the_dashboard_is_one_of_its_metric(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        labels = {_spelled(f): {*f._labelnames, "le"} for f in inspect_workspace(ws).metric_families()}  # type: ignore[attr-defined]
    seen = set()
    for panel in panels():
        for target in panel["targets"]:
            (name,) = set(_METRIC.findall(target["expr"]))
            chosen = re.findall(r"(\w+)(?:=~|!~|!=|=)\"", target["expr"])
            grouped = [
                label.strip()
                for found in re.findall(r"\b(?:by|without) \(([^)]*)\)", target["expr"])
                for label in found.split(",")
            ]
            named = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            assert {*chosen, *grouped, *named} <= labels[name], (panel["title"], name)
            seen.update((name, label) for label in (*chosen, *grouped, *named))
    assert ("headwater_view_status", "status") in seen
    assert ("headwater_dead_letters", "owner") in seen


def _spelled(family: Metric) -> str:
    suffix = {"counter": "_total", "histogram": "_bucket"}.get(family.type, "")
    return f"{family.name}{suffix}"


def test_every_metric_of_the_dashboard_is_one_of_a_workspace_and_of_the_page(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", ws.metrics(), re.MULTILINE))
    known = {f"{name}_bucket" if kind == "histogram" else name for name, kind in families.items()}
    shown = {
        name for panel in panels() for target in panel["targets"] for name in _METRIC.findall(target["expr"])
    }
    assert shown <= known, shown - known
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for name in (name.removesuffix("_bucket") for name in shown):
        assert f"`{name}`" in page, name
