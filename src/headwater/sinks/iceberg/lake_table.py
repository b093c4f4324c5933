"""The Iceberg table of a sink: opened in its catalog or created, and checked to be one that the sink may write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table

from headwater.sinks.base.target import TICK, WEIGHT, SinkError, TargetShape
from headwater.sinks.iceberg.table_files import SyncedFileIO

OWNER = "headwater.sink"
"""Table property with the name of the sink that owns the table."""


class LakeTable:
    """A table in a catalog. Without `properties` the catalog is a SQLite file in the folder of the warehouse."""

    def __init__(
        self, identifier: tuple[str, ...], warehouse: Path, properties: Mapping[str, str] | None
    ) -> None:
        self.identifier = identifier
        self._warehouse = warehouse
        self._properties = properties
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    def forget(self) -> None:
        """Load the table again at its next use."""
        self._table = None

    def close(self) -> None:
        """Close the catalog."""
        catalog, self._catalog, self._table = self._catalog, None, None
        if catalog is not None:
            catalog.close()

    def fresh(self, shape: TargetShape) -> Table:
        """Return the table with its current metadata; create it again if it was dropped."""
        if self._table is not None:
            try:
                return self._table.refresh()
            except NoSuchTableError:
                self._table = None
        return self.open(shape)

    def open(self, shape: TargetShape) -> Table:
        """Return the table, created if missing; SinkError if it is not a table for this sink."""
        catalog = self._connected()
        try:
            table = catalog.load_table(self.identifier)
        except NoSuchTableError:
            table = self._create(catalog, shape)
        expected = [(f.name, str(f.field_type)) for f in _iceberg(_columns(shape)).fields]
        found = [(f.name, str(f.field_type)) for f in _iceberg(table.schema().as_arrow()).fields]
        name = ".".join(self.identifier)
        if found != expected:
            raise SinkError(
                f"the columns of table {name} differ from those that sink {shape.sink!r} writes",
                detail=f"the table has {_shown(found)}; the sink writes {_shown(expected)}",
                hint="DROP SINK and CREATE SINK with another table",
                sink=shape.sink,
                table=name,
                found=_shown(found),
                expected=_shown(expected),
            )
        owner = table.properties.get(OWNER)
        if owner != shape.sink and table.current_snapshot() is not None:
            whose = "another program" if owner is None else f"sink {owner!r}"
            raise SinkError(
                f"table {name} belongs to {whose}",
                hint=f"choose another table for sink {shape.sink!r}; or set the table property {OWNER} to {shape.sink!r}, "
                "and the sink replaces its rows with those of the view",
                sink=shape.sink,
                table=name,
                owner=owner,
            )
        if table.format_version != 2 or not table.spec().is_unpartitioned():
            raise SinkError(
                f"table {name} is partitioned, or its format version is not 2",
                hint="choose another table for the sink, which creates a table that does not exist",
                sink=shape.sink,
                table=name,
                reason="table-format",
            )
        self._table = table
        return table

    def _create(self, catalog: Catalog, shape: TargetShape) -> Table:
        try:
            catalog.create_namespace(self.identifier[:-1])
        except NamespaceAlreadyExistsError:
            pass
        properties = {
            "format-version": "2",
            OWNER: shape.sink,
            "write.parquet.compression-codec": "zstd",
            "write.metadata.previous-versions-max": "10",
        }
        try:
            return catalog.create_table(self.identifier, _columns(shape), properties=properties)
        except TableAlreadyExistsError:
            return catalog.load_table(self.identifier)

    def _connected(self) -> Catalog:
        if self._catalog is None:
            properties = dict(self._properties or {})
            if not properties:
                self._warehouse.mkdir(parents=True, exist_ok=True)
                uri, place = f"sqlite:///{self._warehouse}/catalog.db", f"file://{self._warehouse}"
                files = f"{SyncedFileIO.__module__}.{SyncedFileIO.__name__}"
                properties = {"type": "sql", "uri": uri, "warehouse": place, "py-io-impl": files}
            self._catalog = load_catalog(properties.pop("name", "headwater"), **properties)
        return self._catalog


def _columns(shape: TargetShape) -> pa.Schema:
    """Return the columns of the table: the columns of the view, all nullable, and in a changelog two more."""
    fields = [pa.field(f.name, f.type) for f in shape.schema]
    more = [WEIGHT, TICK] if shape.mode == "changelog" else []
    return pa.schema([*fields, *(pa.field(f.name, f.type) for f in more)])


def _iceberg(schema: pa.Schema) -> Any:
    from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids

    return _pyarrow_to_schema_without_ids(schema)


def _shown(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
