"""SEARCH: the rows of a view as documents of a tantivy index in a folder.

Guarantee: exactly once. Documents and the checkpoint, which is a document too, change in one commit of the index, which puts
one file in place; a crash leaves the commit before or the one after it. Readers (`search_index`) see whole commits.

The writer of the index holds a lock of the operating system while a sink runs. The lock ends with the process, however it
ends: what was not committed is discarded, and no cleanup is needed. A second writer is rejected while the first one exists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pyarrow as pa
import tantivy

from headwater.core.arguments import text
from headwater.core.text_analysis import LANGUAGES
from headwater.core.types import format_type
from headwater.sinks.base.blue_green import Version
from headwater.sinks.base.sink_setup import SinkSetup
from headwater.sinks.base.target import (
    CheckpointConflictError,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetDownError,
    TargetShape,
)
from headwater.sinks.search.search_index import HIGHLIGHT, SCORE, SearchIndex
from headwater.sinks.search.search_schema import HEAD, KEY, RESERVED, SearchLayout
from headwater.sinks.search.versions import SearchVersions, folder_of, lock_folders, of_versions

_WRITER_BYTES = 100_000_000
"""Bytes that the writer buffers in memory before it writes a segment."""
_BATCH_ROWS = 20_000
_BULK_ROWS = 50_000
"""Number of rows from which on two threads index; with fewer rows one thread makes fewer segments."""


class SearchTarget:
    """An index in a folder, with a document for each row, replaced by key.

    `text` are the columns to be searched in full text, by default every STRING (and ARRAY<STRING>) column outside the key;
    `language` reduces words to their stems ('english', 'german', ...); without it words are indexed as written, in lower
    case. `accents='fold'` treats é as e.
    """

    guarantee: ClassVar[str] = (
        "exactly once: documents and checkpoint are one commit of the index; a repeated tick is recognised"
    )

    def __init__(
        self,
        path: str | Path,
        *,
        text: tuple[str, ...] | None = None,
        language: str | None = None,
        accents: str = "keep",
        version: Version | None = None,
    ) -> None:
        if language is not None and language not in LANGUAGES:
            raise SinkError(
                f"language {language!r} is not supported",
                hint=f"use one of {', '.join(LANGUAGES)}",
                option="language",
                value=language,
            )
        if accents not in ("keep", "fold"):
            raise SinkError(
                f"accents must be 'keep' or 'fold', not {accents!r}",
                hint="'fold' treats é as e",
                option="accents",
                value=accents,
            )
        self._place = Path(path)
        self._version = version
        self.path = self._place
        """Folder of the index: the sink's folder, or a folder within it if a version was rebuilt."""
        self._sink = ""
        self._text = text
        self._language = language
        self._accents = accents
        self._layout: SearchLayout | None = None
        self._reader: SearchIndex | None = None
        self._index: tantivy.Index | None = None
        self._writer: tantivy.IndexWriter | None = None

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        options = setup.options
        return cls(
            options.get("path") or setup.place,
            text=None if options.get("text") is None else _columns(options["text"]),
            language=options.get("language"),
            accents=options.get("accents", "keep"),
        )

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        return () if self._layout is None else self._layout.key

    def prepare(self, shape: TargetShape) -> None:
        """Create the index, or check that the one in the folder has these columns."""
        layout = self._layout = self._layout_of(shape)
        self._sink = shape.sink
        self._find()
        if not self._begun():
            self._create(layout)
        self._reader = SearchIndex(self.path, exact=True)
        found = self._reader.layout
        if found is None:
            raise SinkError(
                f"{self.path} contains a search index that was not written by a sink",
                hint="choose another path for the sink",
                reason="foreign-index",
            )
        if found.document() != layout.document():
            raise SinkError(
                f"the search index in {self.path} has other columns or options than sink {shape.sink!r}",
                detail="; ".join(_differences(found, layout)),
                hint="DROP SINK and CREATE SINK with another path; or delete the folder, and the sink writes it again",
                sink=shape.sink,
                differences=tuple(_differences(found, layout)),
            )

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged: every type is read back exactly."""
        return rows

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint of the newest commit."""
        self._find()
        return self._opened().checkpoint()

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Apply the change in one commit: delete terms, add documents, replace the checkpoint."""
        try:
            while not self._apply_where_it_is(change, before, after):
                pass  # another version became active meanwhile
        except OSError as error:
            raise TargetDownError(f"{self._place} could not be written", detail=str(error)) from error

    def _apply_where_it_is(
        self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint
    ) -> bool:
        self._find()
        with lock_folders(self.path):
            if folder_of(self._place, self._version) != self.path:
                return False
            self._apply(change, before, after)
            return True

    def _apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        bulk = change.upserts.num_rows >= _BULK_ROWS
        layout, writer = self._prepared(), self._locked(threads=2 if bulk else 1)
        found = self._opened().checkpoint()
        if found != before:
            self._drop()  # the writer may have state of files that no longer exist
            raise CheckpointConflictError(
                f"the checkpoint of the search index in {self.path} was changed by another process",
                found=found,
            )
        filled = len(self._opened()) > 0
        try:
            for rows in _batches(change.deletes) if filled else ():
                for key in layout.keys(rows):
                    writer.delete_documents_by_term(KEY, key)
            for rows in _batches(change.upserts):
                keys = layout.keys(rows)
                for key in keys if filled else ():
                    writer.delete_documents_by_term(KEY, key)
                for document in layout.documents(rows, keys):
                    writer.add_document(document)
            writer.delete_documents_by_term(KEY, HEAD)
            writer.add_document(layout.head(after))
            writer.commit()
        except (ValueError, OSError, RuntimeError) as error:
            self._drop()
            raise TargetDownError(
                f"the search index in {self.path} could not be written", detail=str(error)
            ) from error
        except BaseException:
            self._drop()
            raise
        if bulk:
            self._writer = self._index = None

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the newest commit."""
        self._find()
        return self._opened().rows()

    def close(self) -> None:
        """Finish merging, and release the lock."""
        writer, self._writer, self._index, self._reader = self._writer, None, None, None
        if writer is not None:
            writer.wait_merging_threads()

    def versions(self) -> SearchVersions:
        """See `headwater.sinks.base.blue_green`."""
        return SearchVersions(self._sink, self._place, self._version_target, _checkpoint_in)

    def _version_target(self, version: Version) -> SearchTarget:
        return SearchTarget(
            self._place, text=self._text, language=self._language, accents=self._accents, version=version
        )

    def _find(self) -> None:
        """Update the folder of the index: another version may have become active."""
        folder = folder_of(self._place, self._version)
        if folder != self.path:
            self._drop()
            self.path, self._reader = folder, None

    def _layout_of(self, shape: TargetShape) -> SearchLayout:
        if shape.mode != "upsert" or not shape.key:
            raise SinkError(
                f"sink {shape.sink!r} into SEARCH needs a key, by which documents are replaced",
                hint="declare a key, as in WITH (key = '...')",
                sink=shape.sink,
                reason="no-key",
            )
        for name in shape.schema.names:
            if name.startswith(RESERVED) or name in (SCORE.name, HIGHLIGHT):
                raise SinkError(
                    f"column {name!r} of view {shape.view!r} has a name that is reserved in a search index",
                    hint="rename the column in the view",
                    sink=shape.sink,
                    column=name,
                    reason="reserved-name",
                )
        schema = pa.schema([pa.field(f.name, f.type, f.nullable) for f in shape.schema])
        texts = tuple(f.name for f in schema if _is_text(f.type))
        if self._text is None:
            return self._laid_out(schema, shape, [t for t in texts if t not in shape.key])
        for name in self._text:
            if name not in texts:
                raise SinkError(
                    f"column {name!r} cannot have a full-text index",
                    hint=f"name STRING columns of the view in text: {', '.join(texts) or 'the view has none'}",
                    sink=shape.sink,
                    option="text",
                    column=name,
                )
        return self._laid_out(schema, shape, [t for t in texts if t in self._text])

    def _laid_out(self, schema: pa.Schema, shape: TargetShape, text: list[str]) -> SearchLayout:
        return SearchLayout(schema, shape.key, tuple(text), self._language, self._accents == "keep")

    def _begun(self) -> bool:
        """Whether there is an index. An index that a crash left without its first commit is removed and does not count."""
        if not self.path.is_dir() or not tantivy.Index.exists(str(self.path)):
            return False
        index = SearchIndex(self.path, exact=True)
        if index.layout is not None or len(index):
            return True
        (self.path / "meta.json").unlink()
        return False

    def _create(self, layout: SearchLayout) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not _only_locks(self.path):
                raise SinkError(
                    f"{self.path} contains files that are not of a search index",
                    hint="choose another path for the sink, or empty the folder",
                    reason="foreign-files",
                )
            index = tantivy.Index(layout.fields(), path=str(self.path))
            layout.analysis.register(index)
            with index.writer(heap_size=_WRITER_BYTES, num_threads=1) as writer:
                writer.add_document(layout.head(None))
        except (ValueError, OSError) as error:
            raise TargetDownError(
                f"the search index in {self.path} could not be created", detail=str(error)
            ) from error

    def _prepared(self) -> SearchLayout:
        if self._layout is None:
            raise RuntimeError("prepare was not called")
        return self._layout

    def _opened(self) -> SearchIndex:
        if self._reader is None:
            self._reader = SearchIndex(self.path, exact=True)
        return self._reader

    def _locked(self, threads: int) -> tantivy.IndexWriter:
        if self._writer is None:
            try:
                self._index = tantivy.Index.open(str(self.path))
                self._prepared().analysis.register(self._index)
                self._writer = self._index.writer(heap_size=_WRITER_BYTES, num_threads=threads)
            except (ValueError, OSError) as error:
                if "Lock" not in str(error):
                    raise TargetDownError(
                        f"the search index in {self.path} cannot be opened", detail=str(error)
                    ) from error
                raise TargetDownError(
                    f"another process writes the search index in {self.path}",
                    hint="stop the other process, or choose another path for this sink: one sink writes an index at a time",
                    reason="locked",
                ) from None
        return self._writer

    def _drop(self) -> None:
        """Discard what was not committed, and release the lock even if other references to the writer exist."""
        writer, self._writer, self._index = self._writer, None, None
        if writer is not None:
            with contextlib.suppress(ValueError, OSError, RuntimeError):
                writer.rollback()
                writer.wait_merging_threads()


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or (pa.types.is_list(kind) and pa.types.is_string(kind.value_type)))


def _batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows.num_rows, _BATCH_ROWS):
        yield rows.slice(start, _BATCH_ROWS)


def _only_locks(path: Path) -> bool:
    """Whether the folder has nothing but leftovers of an index whose creation was interrupted."""
    return all(
        found.name.startswith(".tantivy") or found.name == ".managed.json" or of_versions(found.name)
        for found in path.iterdir()
    )


def _checkpoint_in(folder: Path) -> SinkCheckpoint | None:
    return SearchIndex(folder, exact=True).checkpoint()


def _differences(found: SearchLayout, wanted: SearchLayout) -> Iterator[str]:
    for name in sorted(set(found.schema.names) | set(wanted.schema.names)):
        mine, theirs = (
            one.schema.field(name) if name in one.schema.names else None for one in (found, wanted)
        )
        if mine != theirs:
            shown = [("none" if one is None else format_type(one.type)) for one in (mine, theirs)]
            yield f"column {name} is {shown[0]} in the index, and {shown[1]} in the view"
    for what in ("key", "text", "language", "accents"):
        there, here = getattr(found, what), getattr(wanted, what)
        if there != here:
            yield f"{what} is {there!r} in the index, and {here!r} in the sink"
    if found.schema.names != wanted.schema.names:
        yield "the order of columns"


def _columns(given: Any) -> tuple[str, ...]:
    return tuple(name.strip().strip("`") for name in text(given, "text").split(",") if name.strip())
