"""SEARCH: rows become documents and come back exactly; whole commits, one writer, any number of readers."""

import datetime as dt
import operator
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tantivy

import headwater as hw
from headwater.sinks.base.target import (
    CheckpointConflictError,
    SinkError,
    Target,
    TargetDownError,
    TargetShape,
)
from headwater.sinks.search.search_index import SearchIndex
from headwater.sinks.search.search_schema import HEAD, KEY, SearchLayout
from headwater.sinks.search.target import SearchTarget
from headwater.testing.sinks import SinkContract
from headwater.testing.sinks.sink_contract import row
from tests.raising import raises
from tests.sinks.killed import kill_and_compare
from tests.sinks.samples import (
    EVERYTHING,
    checkpoint_of,
    contents_at,
    everything,
    follow,
    same_rows,
    shape,
    upsert,
)

BOOKS = pa.schema([("id", pa.int64()), ("title", pa.string()), ("body", pa.string()), ("year", pa.int32())])


def books() -> pa.RecordBatch:
    """A few rows to search in."""
    rows = [
        (1, "The old man and the sea", "He was an old man who fished alone in a skiff", 1952),
        (2, "Moby-Dick", "Call me Ishmael. Whales & ships <at> sea", 1851),
        (3, "Pride and Prejudice", "It is a truth universally acknowledged", 1813),
        (4, "Untitled", None, None),
    ]
    return pa.RecordBatch.from_pylist([dict(zip(BOOKS.names, row, strict=True)) for row in rows], BOOKS)


def filled(path: Path, rows: pa.RecordBatch, key: tuple[str, ...] = ("id",), **options: Any) -> SearchIndex:
    """An index with these rows."""
    target = SearchTarget(path, **options)
    target.prepare(TargetShape("s", "v", rows.schema, key))
    target.apply(upsert(rows, key), None, checkpoint_of(1, rows))
    target.close()
    return SearchIndex(path)


def ids(table: pa.Table) -> list[int]:
    """The ids found, in order."""
    found: list[int] = table.column("id").to_pylist()
    return found


class TestSearchTarget(SinkContract):
    takes_all = True

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.aside, self.patch = tmp_path / "index", tmp_path / "aside", monkeypatch
        self.made: list[SearchTarget] = []

    def make_target(self) -> Target:
        for dead in self.made:
            dead._drop()  # the lock ends with the process that the test has given up
        self.made.append(SearchTarget(self.path))
        return self.made[-1]

    @contextmanager
    def break_within(self) -> Iterator[None]:
        def fail(*_: Any) -> None:
            raise OSError("no space left")

        with self.patch.context() as patch:
            patch.setattr(SearchLayout, "head", fail)
            self.target.prepare(self.shape) if self.path.exists() else None
            yield

    def take_down(self) -> None:
        self.path.rename(self.aside)
        self.path.write_text("not a folder")

    def bring_up(self) -> None:
        self.path.unlink()
        self.aside.rename(self.path)

    def back_up(self) -> Path:
        shutil.copytree(self.path, self.aside)
        return self.aside

    def put_back(self, backup: Path) -> None:
        shutil.rmtree(self.path)
        shutil.copytree(backup, self.path)

    def tamper(self) -> None:
        layout = self.made[-1]._prepared()
        rows = pa.RecordBatch.from_pylist(
            [
                {"region": "ch", "id": 1, "name": "tampered", "score": 0.0},
                {"region": "ch", "id": 2},
                {"region": "xx", "id": 9, "name": "foreign", "score": 0.0},
            ],
            self.schema,
        )
        keys = layout.keys(rows)
        documents = layout.documents(rows, keys)
        self._write(keys, [documents[0], documents[2]])

    def lose_stand(self) -> None:
        self._write([HEAD], [self.made[-1]._prepared().head(None)])

    def _write(self, keys: list[str], documents: list[tantivy.Document]) -> None:
        self.made[-1]._drop()
        with tantivy.Index.open(str(self.path)).writer(num_threads=1) as writer:
            for key in keys:
                writer.delete_documents_by_term(KEY, key)
            for document in documents:
                writer.add_document(document)

    def test_two_processes_never_both_apply_a_change(self) -> None:
        self.feed.tick([row(1)])
        one = self.start()
        two = self.start()
        self.catch_up(one)
        self.feed.tick([row(2)])
        with self.failing(TargetDownError) as found:
            two.step()
        assert found[0].facts["reason"] == "locked"
        one.close()
        self.catch_up(two)
        self.assert_holds()


# --- rows ----------------------------------------------------------------------------------------------------------


def test_every_type_comes_back_bit_for_bit(tmp_path: Path) -> None:
    assert same_rows(filled(tmp_path, everything()).rows(), [everything()])


@pytest.mark.parametrize("key", [("text",), ("double", "raw"), ("at", "wide", "small"), ("yes", "id")])
def test_any_scalar_columns_can_be_the_key(tmp_path: Path, key: tuple[str, ...]) -> None:
    rows = everything().slice(0, 5)
    target = SearchTarget(tmp_path)
    target.prepare(TargetShape("s", "v", EVERYTHING, key))
    target.apply(upsert(rows, key), None, checkpoint_of(1, rows))
    target.apply(upsert(rows, key), checkpoint_of(1, rows), checkpoint_of(2, rows))
    assert same_rows(target.contents(), [rows])
    rest = rows.slice(3)
    target.apply(
        upsert(rows.slice(0, 0), key, rows.slice(0, 3)), checkpoint_of(2, rows), checkpoint_of(3, rest)
    )
    assert same_rows(target.contents(), [rest])
    target.close()


def test_rows_are_replaced_and_deleted_by_key_tick_after_tick(tmp_path: Path) -> None:
    target = SearchTarget(tmp_path)
    target.prepare(shape())
    for tick in range(1, 12):
        assert follow(target, range(tick, tick + 1)) == target.checkpoint()
        assert same_rows(target.contents(), [contents_at(tick)])
    target.close()


def test_keys_that_are_long_stay_apart(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("n", pa.int64())])
    keys = ["k" * 70_000 + str(n) for n in range(3)]
    rows = pa.RecordBatch.from_arrays([pa.array(keys), pa.array([1, 2, 3])], schema=schema)
    target = SearchTarget(tmp_path)
    target.prepare(TargetShape("s", "v", schema, ("k",)))
    target.apply(upsert(rows, ("k",)), None, checkpoint_of(1, rows))
    target.apply(
        upsert(rows.slice(1, 1), ("k",), rows.slice(0, 1)),
        checkpoint_of(1, rows),
        checkpoint_of(2, rows.slice(1)),
    )
    assert same_rows(target.contents(), [rows.slice(1)])
    target.close()


# --- the checkpoint ------------------------------------------------------------------------------------------------


def test_nothing_is_applied_from_another_stand(tmp_path: Path) -> None:
    target = SearchTarget(tmp_path)
    target.prepare(shape())
    follow(target, range(1, 4))
    with pytest.raises(CheckpointConflictError) as caught:
        target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(9, contents_at(1)))
    assert caught.value.found == target.checkpoint()
    assert same_rows(target.contents(), [contents_at(3)])
    target.close()


def test_a_change_that_fails_on_the_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = SearchTarget(tmp_path)
    target.prepare(shape())
    checkpoint = follow(target, range(1, 4))
    layout = type(target._prepared())
    with monkeypatch.context() as patch:
        patch.setattr(layout, "head", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            target.apply(upsert(contents_at(9), ("id",)), checkpoint, checkpoint_of(9, contents_at(9)))
    assert target.checkpoint() == checkpoint
    assert same_rows(target.contents(), [contents_at(3)])
    follow(target, range(4, 6))
    assert same_rows(target.contents(), [contents_at(5)])
    target.close()


def test_an_older_copy_of_the_folder_says_its_own_stand(tmp_path: Path) -> None:
    target = SearchTarget(tmp_path / "index")
    target.prepare(shape())
    old = follow(target, range(1, 4))
    target.close()
    subprocess.run(["cp", "-r", tmp_path / "index", tmp_path / "backup"], check=True)
    target = SearchTarget(tmp_path / "index")
    target.prepare(shape())
    follow(target, range(4, 9))
    target.close()
    restored = SearchTarget(tmp_path / "backup")
    restored.prepare(shape())
    assert restored.checkpoint() == old
    assert same_rows(restored.contents(), [contents_at(3)])
    restored.close()


# --- one writer, many readers --------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_while_reading_works(tmp_path: Path) -> None:
    first, second = SearchTarget(tmp_path), SearchTarget(tmp_path)
    first.prepare(shape())
    checkpoint = follow(first, range(1, 3))
    second.prepare(shape())
    assert second.checkpoint() == checkpoint
    assert same_rows(second.contents(), [contents_at(2)])
    with raises(TargetDownError, reason="locked"):
        second.apply(upsert(contents_at(1), ("id",)), checkpoint, checkpoint_of(3, contents_at(1)))
    first.close()
    follow(second, range(3, 5))
    assert same_rows(second.contents(), [contents_at(4)])
    second.close()


def test_readers_see_each_commit_from_another_process(tmp_path: Path) -> None:
    target = SearchTarget(tmp_path)
    target.prepare(shape())
    reader = SearchIndex(tmp_path)
    program = "import sys; from headwater.sinks.search.search_index import SearchIndex as S; print(len(S(sys.argv[1])))"
    for tick in range(1, 4):
        follow(target, range(tick, tick + 1))
        assert len(reader) == contents_at(tick).num_rows
        assert reader.checkpoint() == target.checkpoint()
    found = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    assert int(found.stdout) == contents_at(3).num_rows
    target.close()


@pytest.mark.slow
def test_kill_9_leaves_the_index_at_a_tick_and_writable(tmp_path: Path) -> None:
    kill_and_compare("search", tmp_path, kills=2, seed=1)


# --- what it is of -------------------------------------------------------------------------------------------------


def test_an_index_of_other_columns_is_refused_with_what_differs(tmp_path: Path) -> None:
    filled(tmp_path, books())
    changed = BOOKS.set(3, pa.field("year", pa.int64()))
    with raises(
        SinkError, sink="s", differences=("column year is INT in the index, and BIGINT in the view",)
    ):
        SearchTarget(tmp_path).prepare(TargetShape("s", "v", changed, ("id",)))


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda p: SearchTarget(p, language="klingon"), {"option": "language", "value": "klingon"}),
        (lambda p: SearchTarget(p, accents="drop"), {"option": "accents", "value": "drop"}),
        (
            lambda p: SearchTarget(p, text=("year",)).prepare(TargetShape("s", "v", BOOKS, ("id",))),
            {"option": "text", "column": "year"},
        ),
        (
            lambda p: SearchTarget(p).prepare(TargetShape("s", "v", BOOKS, (), "append")),
            {"sink": "s", "reason": "no-key"},
        ),
        (
            lambda p: SearchTarget(p).prepare(
                TargetShape("s", "v", pa.schema([("id", pa.int64()), ("_score", pa.int8())]), ("id",))
            ),
            {"column": "_score", "reason": "reserved-name"},
        ),
    ],
)
def test_what_cannot_be_indexed_is_refused(tmp_path: Path, make: Any, facts: dict[str, Any]) -> None:
    with raises(SinkError, **facts):
        make(tmp_path)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with raises(SinkError, reason="foreign-files"):
        SearchTarget(tmp_path).prepare(shape())
    assert (tmp_path / "mine.txt").read_text() == "precious"


# --- searching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("old", [1]),
        ("OLD Whales", [1, 2]),
        ('"old man"', [1]),
        ('"man old"', []),
        ("title:sea", [1]),
        ("sea -fished", [2]),
        ("+sea +whales", [2]),
        ("year:1813", [3]),
        ("year:[1800 TO 1900] AND sea", [2]),
    ],
)
def test_full_text(tmp_path: Path, text: str, found: list[int]) -> None:
    index = filled(tmp_path, books())
    assert sorted(ids(index.query(text))) == found


def test_the_best_match_comes_first_and_limit_and_offset_page(tmp_path: Path) -> None:
    index = filled(tmp_path, books())
    whole = index.query("sea old")
    assert whole.column_names == [*BOOKS.names, "_score"]
    assert ids(whole) == [1, 2]
    assert whole["_score"][0].as_py() > whole["_score"][1].as_py() > 0
    assert ids(index.query("sea old", limit=1)) == [1]
    assert ids(index.query("sea old", limit=1, offset=1)) == [2]
    assert sorted(ids(index.query())) == [1, 2, 3, 4]


def test_some_columns_can_be_searched_alone(tmp_path: Path) -> None:
    index = filled(tmp_path, books())
    assert sorted(ids(index.query("sea"))) == [1, 2]
    assert ids(index.query("sea", columns=["body"])) == [2]


def test_what_was_found_is_highlighted_as_html(tmp_path: Path) -> None:
    index = filled(tmp_path, books())
    (found,) = index.query("whales", highlight=True).to_pylist()
    assert found["_highlight"] == {
        "title": None,
        "body": "Call me Ishmael. <b>Whales</b> &amp; ships &lt;at&gt; sea",
    }
    (found,) = index.query(None, {"id": 4}, highlight=True).to_pylist()
    assert found["_highlight"] == {"title": None, "body": None}


def test_a_language_finds_words_by_their_stems(tmp_path: Path) -> None:
    assert ids(filled(tmp_path / "plain", books()).query("whale")) == []
    index = filled(tmp_path / "stems", books(), language="english")
    assert ids(index.query("whale")) == [2]
    assert (
        index.query("fishing", highlight=True).to_pylist()[0]["_highlight"]["body"].count("<b>fished</b>")
        == 1
    )


def test_accents_can_be_folded(tmp_path: Path) -> None:
    assert ids(filled(tmp_path / "kept", everything()).query("text:schone")) == []
    index = filled(tmp_path / "folded", everything(), accents="fold")
    assert ids(index.query("text:schone")) == ids(index.query("text:schöne")) != []
    with raises(SinkError, sink="s", differences=("accents is False in the index, and True in the sink",)):
        SearchTarget(tmp_path / "folded").prepare(TargetShape("s", "v", everything().schema, ("id",)))


def test_lists_of_text_are_searched(tmp_path: Path) -> None:
    assert ids(filled(tmp_path, everything()).query("tags:blue")) == [1]


# --- filters -------------------------------------------------------------------------------------------------------

COMPARED: dict[str, list[Any]] = {
    "id": [1, 2**63 - 1],
    "small": [-128, 0, 127],
    "whole": [-(2**31), 3],
    "single": [0.5, 0.0],
    "double": [2.25, 0, float("inf"), float("-inf")],
    "yes": [True, False],
    "text": ["", "a quick fox", "schöne", "zz"],
    "raw": [b"", b"\x00\xff", b"a"],
    "day": [dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    "at": [dt.datetime(2024, 1, 1, 12, 0, 0, 1, dt.UTC), dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)],
    "local": [dt.datetime(1970, 1, 1)],
    "price": [Decimal("12.34"), Decimal("0.00"), 12],
    "wide": [Decimal("1.000001"), Decimal("-" + "9" * 32 + ".999999")],
}
OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    """An index with rows of every type."""
    return filled(tmp_path_factory.mktemp("odd"), everything())


@pytest.mark.parametrize("column", COMPARED)
def test_filters_compare_exactly_and_null_with_nothing(odd: SearchIndex, column: str) -> None:
    rows = everything().to_pylist()
    for value in COMPARED[column]:
        for name, compare in OPERATORS.items():
            # NaN is the greatest of all numbers, as in Spark.
            def holds(have: Any, compare: Any = compare, value: Any = value) -> bool:
                if isinstance(have, float) and have != have:
                    return bool(compare(1, 0))
                if isinstance(have, str):
                    return bool(compare(have.encode(), value.encode()))
                return bool(compare(have, value))

            expected = {r["id"] for r in rows if r[column] is not None and holds(r[column])}
            assert set(ids(odd.query(None, [(column, name, value)]))) == expected, (column, name, value)
        chosen = {r["id"] for r in rows if r[column] is not None and r[column] in COMPARED[column]}
        assert set(ids(odd.query(None, [(column, "in", COMPARED[column])]))) == chosen


def test_filters_find_null_and_not_null(odd: SearchIndex) -> None:
    rows = everything().to_pylist()
    for column in EVERYTHING.names:
        missing = {r["id"] for r in rows if r[column] is None}
        assert set(ids(odd.query(None, {column: None}))) == missing
        assert set(ids(odd.query(None, [(column, "!=", None)]))) == {r["id"] for r in rows} - missing


def test_long_values_are_compared_as_a_whole(odd: SearchIndex) -> None:
    assert ids(odd.query(None, {"raw": b"a" * 300})) == [4]
    assert ids(odd.query(None, {"raw": b"a" * 299})) == []
    assert ids(odd.query(None, {"text": "fox " * 200})) == [5]
    with raises(hw.UsageError, column="text", operator=">", bytes_max=16):
        odd.query(None, [("text", ">", "a" * 40)])


def test_filters_narrow_a_search_without_changing_its_scores(tmp_path: Path) -> None:
    index = filled(tmp_path, books())
    found = index.query("sea", [("year", "<", 1900)])
    assert ids(found) == [2]
    scores = dict(zip(ids(index.query("sea")), index.query("sea")["_score"].to_pylist(), strict=True))
    assert found["_score"].to_pylist() == [pytest.approx(scores[2])]


@pytest.mark.parametrize(
    ("query", "facts"),
    [
        ({"text": 'title:"open'}, {"reason": "syntax"}),
        ({"text": "nope:word"}, {"column": "nope", "reason": "no-column"}),
        ({"text": "year:often"}, {"reason": "search-text"}),
        ({"text": 5}, {"argument": "text", "value": 5}),
        ({"text": "a", "columns": ["year"]}, {"column": "year", "reason": "not-a-text-column"}),
        ({"filters": {"nope": 1}}, {"column": "nope", "reason": "no-column"}),
        ({"filters": [("year", "~", 1)]}, {"operator": "~"}),
        ({"filters": [("year", 1)]}, {"reason": "filter"}),
        ({"filters": {"year": "often"}}, {"column": "year", "value": "often"}),
        ({"filters": [("year", "<", None)]}, {"column": "year", "reason": "none"}),
        ({"filters": [("year", "in", "19")]}, {"column": "year", "operator": "in", "value": "19"}),
        ({"limit": 0}, {"argument": "limit", "value": 0}),
    ],
)
def test_what_cannot_be_searched_for_is_refused(
    tmp_path: Path, query: dict[str, Any], facts: dict[str, Any]
) -> None:
    index = filled(tmp_path, books())
    with raises(hw.UsageError, **facts):
        index.query(**query)


def test_hidden_columns_are_pointed_to_filters(odd: SearchIndex) -> None:
    with raises(hw.UsageError, column="price", reason="not-a-text-column"):
        odd.query("price:12")
    with raises(hw.UsageError, column="tags", reason="not-a-scalar"):
        odd.query(None, [("tags", "=", "red")])
