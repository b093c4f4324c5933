"""Every format of files keeps the contract of a source."""

from __future__ import annotations

import json
import os
import random
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.log.protocol import Log
from headwater.sources.files import files_source, scan_files
from headwater.sources.registry import DeclaredSource
from headwater.testing.source_contract import Row, SourceContract, declared


@pytest.fixture(autouse=True)
def small_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit for every few lines, and no waiting."""
    monkeypatch.setattr(scan_files, "COMMIT_BYTES", 100)
    monkeypatch.setattr(files_source, "SCAN_EVERY_S", 0.0)
    monkeypatch.setattr(files_source, "SCAN_SHARE", 0)


class FilesContract(SourceContract):
    """Files that grow, are rotated in every way, and come anew."""

    format: ClassVar[str]
    options: ClassVar[dict[str, Any]] = {}

    def setup_method(self) -> None:
        super().setup_method()
        self.outside = self.folder / "files"
        self.outside.mkdir()
        self.runs: dict[int, list[Row]] = {}
        self.names: dict[int, str] = {}
        self.number = self.files = 0

    def make_source(self, log: Log) -> DeclaredSource:
        return declared(
            log,
            self.folder,
            "files",
            path=str(self.outside / "app*"),
            format=self.format,
            topic="rows",
            columns="n BIGINT, text STRING",
            settle="1 hour",
            **self.options,
        )

    def expected(self) -> dict[str, list[list[Row]]]:
        return {"rows": list(self.runs.values())}

    def line(self, row: Row) -> str:
        raise NotImplementedError

    def header(self) -> str:
        return ""

    def new_file(self) -> int:
        self.files += 1
        self.names[self.files] = f"app{self.files}.log"
        self.runs[self.files] = []
        (self.outside / self.names[self.files]).write_text(self.header())
        return self.files

    def rows(self, chance: random.Random) -> list[Row]:
        made = []
        for _ in range(chance.randrange(1, 6)):
            self.number += 1
            made.append({"n": self.number, "text": "x" * chance.randrange(40)})
        return made

    def grow(self, chance: random.Random) -> None:
        if not self.files or chance.random() < 0.2:
            self.new_file()
        file = chance.choice(list(self.names))
        path = self.outside / self.names[file]
        with path.open("a") as out:
            for row in self.rows(chance):
                out.write(self.line(row))
                self.runs[file].append(row)
        if chance.random() < 0.3:
            rotated = f"{self.names[file]}.{self.number}"
            os.rename(path, self.outside / rotated)
            self.names[file] = rotated


class TestJson(FilesContract):
    format = "json"

    def line(self, row: Row) -> str:
        return json.dumps(row) + "\n"


class TestCsv(FilesContract):
    format = "csv"

    def header(self) -> str:
        return "text,n\n"

    def line(self, row: Row) -> str:
        return f'"{row["text"]}",{row["n"]}\n'


class TestLines(FilesContract):
    format = "lines"
    options: ClassVar[dict[str, Any]] = {"pattern": r"(?P<n>\d+) \[(?P<text>x*)\]", "null": "NULL"}

    def line(self, row: Row) -> str:
        return f"{row['n']} [{row['text']}]\n"


class TestParquet(FilesContract):
    format = "parquet"

    def grow(self, chance: random.Random) -> None:
        self.files += 1
        rows = self.runs[self.files] = self.rows(chance)
        schema = pa.schema([("n", pa.int64()), ("text", pa.string())])
        hidden = self.outside / f".app{self.files}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), hidden)
        hidden.rename(self.outside / f"app{self.files}.parquet")
