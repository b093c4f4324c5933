"""Declarations of user-defined functions: kind, types and version, as stored in the log, without their code."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa

from headwater.core.errors import NewerVersionError, SchemaError, UsageError
from headwater.core.types import format_type, parse_type
from headwater.sql.lexer import words_of
from headwater.sql.parser import parse_columns

FUNCTION = "function"
"""Kind of the log entries that declare functions."""
FORMAT = 1

FunctionKind = Literal["scalar", "aggregate", "table", "fold"]
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,199}\Z")
_METHODS = {"scalar": "function", "aggregate": "aggregate", "table": "table_function", "fold": "fold"}


@dataclass(frozen=True)
class FunctionDefinition:
    """A function's contract. `returns` is the type of a value; of a table function a list of rows, of a fold the state."""

    kind: FunctionKind
    name: str
    returns: pa.DataType
    version: str = "1"
    state: pa.DataType | None = None
    """Type of an aggregate's state per group."""
    removes: bool = False
    """Whether an aggregate supports retraction, by its own `remove`."""

    @property
    def signature(self) -> str:
        """The whole definition in a line: state that was computed under another signature cannot be reused."""
        kept = "" if self.state is None else f" state {format_type(self.state)}"
        taken = " with remove" if self.removes else ""
        return (
            f"{self.kind} {self.name} returns {format_type(self.returns)}{kept}{taken} version {self.version}"
        )

    @property
    def method(self) -> str:
        """Call of the workspace method that declares the function."""
        return f"ws.{_METHODS[self.kind]}({self.name!r}, ...)"

    def to_document(self) -> dict[str, Any]:
        """Return a JSON-compatible form, which `from_document` parses."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            "name": self.name,
            "returns": format_type(self.returns),
            "version": self.version,
            "state": None if self.state is None else format_type(self.state),
            "removes": self.removes,
        }

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> FunctionDefinition:
        """Parse the form written by `to_document`; raises NewerVersionError for a newer format."""
        if document["format"] > FORMAT:
            raise NewerVersionError(
                f"function {document['name']!r} was declared by a newer version of Headwater",
                hint="upgrade Headwater: pip install -U headwater",
                found=document["format"],
                supported=FORMAT,
            )
        state = document["state"]
        return FunctionDefinition(
            document["kind"],
            document["name"],
            parse_type(document["returns"]),
            document["version"],
            None if state is None else parse_type(state),
            document["removes"],
        )


def define(
    kind: FunctionKind,
    name: Any,
    returns: Any,
    version: Any,
    *,
    state: Any = None,
    removes: bool = False,
) -> FunctionDefinition:
    """Return a validated definition, given the arguments of a workspace method; raises UsageError if they are invalid."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise UsageError(
            f"{name!r} cannot be the name of a function",
            hint="use letters, digits and underscores, not starting with a digit",
            argument="name",
            value=name,
        )
    if kind != "fold" and name.lower() in builtin():
        raise UsageError(
            f"{name!r} is a built-in function of SQL",
            hint="choose another name",
            function=name,
            reason="built-in",
        )
    if isinstance(version, bool) or not isinstance(version, (str, int)) or not str(version):
        raise UsageError(
            f"the version of function {name!r} must be a string or a number, not {version!r}",
            argument="version",
            value=version,
        )
    made: pa.DataType
    if kind in ("table", "fold"):
        rows = columns_of(name, returns)
        made = pa.list_(rows) if kind == "table" else rows
    else:
        made = type_of(name, "returns", returns)
    kept = None if state is None else type_of(name, "state", state)
    return FunctionDefinition(kind, name, made, str(version), kept, removes)


def type_of(name: str, what: str, given: Any) -> pa.DataType:
    """Parse a type given as SQL text or as an Arrow type."""
    if isinstance(given, pa.DataType):
        given = format_type(given)
    if not isinstance(given, str):
        raise UsageError(
            f"{what} of function {name!r} must be a type, not {given!r}",
            hint=f'{what}="DOUBLE"',
            argument=what,
            value=given,
        )
    try:
        return parse_type(given)
    except SchemaError as error:
        raise UsageError(
            f"{what} of function {name!r}: {error.message}", hint=error.hint, argument=what, value=given
        ) from None


def columns_of(name: str, given: Any) -> pa.DataType:
    """Parse columns given as in CREATE TOPIC, or as an Arrow schema, into a struct of nullable fields."""
    if isinstance(given, pa.Schema):
        given = ", ".join(f"`{f.name}` {format_type(f.type)}" for f in given)
    if not isinstance(given, str):
        raise UsageError(
            f"returns of function {name!r} must be columns, not {given!r}",
            hint='returns="word STRING, n INT"',
            argument="returns",
            value=given,
        )
    columns = parse_columns(given)
    if columns.key or columns.time or columns.private or not len(columns.schema):
        raise UsageError(
            f"returns of function {name!r} must be columns only, without PRIMARY KEY, WATERMARK or PRIVATE BY",
            hint='returns="word STRING, n INT"',
            argument="returns",
            reason="columns-only",
        )
    folded = [n.lower() for n in columns.schema.names]
    if len(set(folded)) < len(folded):
        raise UsageError(
            f"returns of function {name!r} has two columns of the same name (names are case-insensitive)",
            argument="returns",
            reason="duplicate-column",
        )
    return pa.struct([pa.field(f.name, f.type) for f in columns.schema])


@lru_cache(maxsize=1024)
def names_in(query: str) -> frozenset[str]:
    """Return the names before a parenthesis in a query, in lower case, each of which may be a function; of a fold, its
    function."""
    words = words_of(query)
    called = {a.text.lower() for a, b in itertools.pairwise(words) if a.is_name and b.text == "("}
    if words[0].text.upper() == "FOLD":
        called |= {words[-2].text.lower()}
    return frozenset(called)


_SQL_ALONE = """
and any approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate between bigint binary boolean
case cast chr collations cumulate_window date decimal div double float from_avro from_protobuf if in int len localtime
luhn_check map measure mod not or percentile_cont percentile_disc python_worker_logs random range schema_of_avro smallint
space sql_keywords string time timestamp tinyint to_avro to_protobuf uuid variant_explode variant_explode_outer
"""
"""SQL functions without a Python function in PySpark: together with PySpark's, the list is available without a JVM."""


@lru_cache(maxsize=1)
def builtin() -> frozenset[str]:
    """Return the names of SQL's own functions, in lower case."""
    from pyspark.sql import functions

    return frozenset(name.lower() for name in (*functions.__all__, *_SQL_ALONE.split()))
