"""docs/compatibility.md lists what is stored and what is public: each of its tables is compared with the code, both ways.

`stored_names` and `public_names` say what the code has. No Spark is started.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

import orjson
import pyarrow.parquet as pq
import pytest

from headwater.state import manifest as manifests
from tests.repo.compatibility_page import GOLDEN, PAGE, TABLES, TABLES_OF_PAGE, names
from tests.repo.public_names import fill
from tests.repo.stored_names import files_and_folders, golden_workspaces, journal, manifest_extra, view_extra


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a golden workspace with views, to which something of every other kind was added."""
    folder = tmp_path_factory.mktemp("compatibility") / "ws"
    fill(folder)
    return folder


def test_every_list_of_names_is_on_the_page() -> None:
    assert set(TABLES) == set(TABLES_OF_PAGE)


@pytest.mark.parametrize("heading", sorted(TABLES_OF_PAGE))
def test_a_table_of_the_page_lists_what_the_code_has(heading: str) -> None:
    """The message says what to add to the page, or what was taken out of the code and must stay."""
    assert heading in TABLES, f"a function below @table({heading!r}) says what the code has"
    code, rows = TABLES[heading](), TABLES_OF_PAGE[heading]
    on_page = {name: row[1] for row in rows for name in names(row[0])}
    assert sum(len(names(row[0])) for row in rows) == len(on_page), f"{heading}: a name is listed twice"
    missing, gone = sorted(set(code) - set(on_page)), sorted(set(on_page) - set(code))
    assert not missing, (
        f"{heading}: {missing} are in the code and not in {PAGE.name}: what is stored or public is listed there"
    )
    assert not gone, (
        f"{heading}: {gone} are in {PAGE.name} and not in the code: what was stored or public once must stay"
    )
    if isinstance(code, Mapping):
        for name, wanted in code.items():
            found = names(on_page[name])
            if isinstance(wanted, tuple):
                assert tuple(found) == wanted, f"{heading}: {name}, in order"
            else:
                assert len(found) == len(set(found)), f"{heading}: {name} has a name twice"
                assert set(found) == set(wanted), (
                    f"{heading}: {name}: only in the code {sorted(set(wanted) - set(found))}, "
                    f"only on the page {sorted(set(found) - set(wanted))}"
                )


def test_records_of_workspaces_have_the_keys_that_are_listed(workspace: Path) -> None:
    known = {name: set(names(row[1])) for row in TABLES_OF_PAGE["Journal records"] for name in names(row[0])}
    for folder in (*golden_workspaces(), workspace):
        for record in journal(folder):
            assert set(record) <= known["every record"] | known[record["k"]], (folder, record["k"])


def test_sealed_segments_of_workspaces_have_the_metadata_that_is_listed() -> None:
    (row,) = TABLES_OF_PAGE["Sealed segments"]
    seen = set()
    for path in GOLDEN.rglob("topics/*/*/*.parquet"):
        seen |= set(json.loads(pq.read_metadata(path).metadata[b"headwater"]))
    assert seen == set(names(row[1]))


def test_a_run_is_stored_in_the_order_that_is_listed() -> None:
    from headwater.state.run_refs import RunRef

    stored = orjson.loads(RunRef("f", 1, 2, 3, 4, 6, (7, 8), "sum", 9, 10, 11).json)
    assert stored == ["f", 1, 2, 3, 4, 5, 7, 8, "sum", 9, 10, 11]


def test_the_state_of_workspaces_has_the_keys_that_are_listed() -> None:
    known = {name: set(names(row[1])) for row in TABLES_OF_PAGE["Manifests"] for name in names(row[0])}
    extra, own = set(view_extra()), set(manifest_extra())
    for path in GOLDEN.glob("*/workspace/state/manifests/*.json"):
        plain = orjson.loads(path.read_bytes())
        assert set(plain) <= known["manifest"]
        assert set(plain["extra"]) <= own, path
        for view in plain["views"].values():
            assert set(view) == known["view"]
            assert set(view["extra"]) <= extra, path
            assert view["status"] in get_args(manifests.Status)
        assert all(
            re.fullmatch(r"[^@/]+@\d+(\.[0-9a-f]{8})?(@[^/]+)?(~next)?/\S+", name)
            for name in plain["arrangements"]
        )


def test_files_of_workspaces_are_listed(workspace: Path) -> None:
    known = set(files_and_folders())
    for folder in (*golden_workspaces(), workspace):
        for path in folder.iterdir():
            assert re.sub(r"^head\.\d$", "head.<n>", path.name) in known, f"{path.name} in {folder}"
