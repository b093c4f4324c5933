"""Every type, there and back: what the stream and COPY give is what was written, or the counterpart that is documented."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.core.errors import BadRowError, SchemaError
from headwater.core.types import parse_type
from headwater.sources.postgres.decode.copy_format import decode_copy
from headwater.sources.postgres.decode.decode_rows import decode
from tests.raising import raises
from tests.sources.replaying import replay

UTC = dt.UTC
LAST, FIRST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1, 1, 1)

EXACT: list[tuple[str, str, dict[str, Any]]] = [
    ("boolean", "BOOLEAN", {"t": True, "f": False}),
    ("smallint", "SMALLINT", {"-32768": -32768, "32767": 32767, "0": 0}),
    ("integer", "INT", {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    ("bigint", "BIGINT", {"-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1}),
    ("real", "FLOAT", {"3.4028235e+38": 3.4028234663852886e38, "1e-45": 1.401298464324817e-45, "-0": -0.0}),
    ("double precision", "DOUBLE", {"1.7976931348623157e308": 1.7976931348623157e308, "5e-324": 5e-324, "0.1": 0.1}),
    ("real", "FLOAT", {"Infinity": math.inf, "-Infinity": -math.inf}),
    ("double precision", "DOUBLE", {"Infinity": math.inf, "-Infinity": -math.inf}),
    ("numeric(10,2)", "DECIMAL(10,2)", {"-99999999.99": Decimal("-99999999.99"), "0": Decimal("0.00")}),
    ("numeric(38,38)", "DECIMAL(38,38)", {"0." + "9" * 38: Decimal("0." + "9" * 38)}),
    ("numeric(38)", "DECIMAL(38,0)", {"-" + "9" * 38: Decimal("-" + "9" * 38)}),
    ("numeric(2,-3)", "DECIMAL(5,0)", {"98765": Decimal(99000)}),
    ("numeric(3,5)", "DECIMAL(5,5)", {"0.00999": Decimal("0.00999")}),
    ("numeric", "STRING", {"NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity", "1.500": "1.500"}),
    ("numeric", "STRING", {"1e200": "1" + "0" * 200}),
    ("numeric(39,1)", "STRING", {"1.5": "1.5", "NaN": "NaN"}),
    ("text", "STRING", {"": "", "Grüße 🚀\t\n\r\\ \\N '\"": "Grüße 🚀\t\n\r\\ \\N '\""}),
    ("text", "STRING", {"\\": "\\", "\\\\n": "\\\\n", "NULL": "NULL", "\b\f\v": "\b\f\v"}),
    ("varchar(5)", "STRING", {"abc": "abc"}),
    ("char(5)", "STRING", {"abc": "abc  "}),
    ('"char"', "STRING", {"a": "a"}),
    ("name", "STRING", {"abc": "abc"}),
    ("bytea", "BINARY", {"\\x": b"", "\\x00ff5c": b"\x00\xff\\", "abc": b"abc"}),
    ("date", "DATE", {"2024-02-29": dt.date(2024, 2, 29), "0001-01-01": dt.date(1, 1, 1)}),
    ("date", "DATE", {"infinity": dt.date(9999, 12, 31), "-infinity": dt.date(1, 1, 1), "2024-01-01": dt.date(2024, 1, 1)}),
    ("timestamp", "TIMESTAMP_NTZ", {"2024-02-29 12:34:56.789": dt.datetime(2024, 2, 29, 12, 34, 56, 789000)}),
    ("timestamp", "TIMESTAMP_NTZ", {"infinity": LAST, "-infinity": FIRST, "1969-12-31 23:59:59.999999": dt.datetime(1969, 12, 31, 23, 59, 59, 999999)}),
    ("timestamptz", "TIMESTAMP", {"2024-02-29 12:34:56+05:30": dt.datetime(2024, 2, 29, 7, 4, 56, tzinfo=UTC)}),
    ("timestamptz", "TIMESTAMP", {"infinity": LAST.replace(tzinfo=UTC), "-infinity": FIRST.replace(tzinfo=UTC)}),
    ("time", "STRING", {"12:34:56.789": "12:34:56.789", "24:00": "24:00:00"}),
    ("timetz", "STRING", {"12:34:56+02": "12:34:56+02"}),
    ("interval", "STRING", {"1 year 2 mons -3 days 04:05:06.5": "P1Y2M-3DT4H5M6.5S", "0": "PT0S"}),
    ("uuid", "STRING", {"A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}),
    ("json", "STRING", {'{"a":  [1, "b\\n"]}': '{"a":  [1, "b\\n"]}'}),
    ("jsonb", "STRING", {'{"b":1,"a":"é"}': '{"a": "é", "b": 1}'}),
    ("money", "STRING", {"1234.5": "$1,234.50"}),
    ("inet", "STRING", {"192.168.0.1/24": "192.168.0.1/24"}),
    ("cidr", "STRING", {"10.0.0.0/8": "10.0.0.0/8"}),
    ("macaddr", "STRING", {"08:00:2b:01:02:03": "08:00:2b:01:02:03"}),
    ("macaddr8", "STRING", {"08:00:2b:01:02:03:04:05": "08:00:2b:01:02:03:04:05"}),
    ("bit(3)", "STRING", {"101": "101"}),
    ("bit varying", "STRING", {"": "", "0101": "0101"}),
    ("oid", "BIGINT", {"4294967295": 4294967295}),
    ("xid", "BIGINT", {"4294967295": 4294967295}),
    ("cid", "BIGINT", {"7": 7}),
    ("xid8", "DECIMAL(20,0)", {"18446744073709551615": Decimal(18446744073709551615)}),
    ("tid", "STRING", {"(1,2)": "(1,2)"}),
    ("pg_lsn", "STRING", {"16/B374D848": "16/B374D848"}),
    ("regclass", "STRING", {"pg_class": "pg_class"}),
    ("int2vector", "STRING", {"1 2 3": "1 2 3"}),
    ("point", "STRING", {"(1,2.5)": "(1,2.5)"}),
    ("line", "STRING", {"{1,2,3}": "{1,2,3}"}),
    ("lseg", "STRING", {"[(1,2),(3,4)]": "[(1,2),(3,4)]"}),
    ("box", "STRING", {"(3,4),(1,2)": "(3,4),(1,2)"}),
    ("path", "STRING", {"((1,2),(3,4))": "((1,2),(3,4))"}),
    ("polygon", "STRING", {"((1,2),(3,4))": "((1,2),(3,4))"}),
    ("circle", "STRING", {"<(1,2),3>": "<(1,2),3>"}),
    ("tsvector", "STRING", {"'a' 'b':1": "'a' 'b':1"}),
    ("tsquery", "STRING", {"'a' & 'b'": "'a' & 'b'"}),
    ("jsonpath", "STRING", {'$."a"': '$."a"'}),
    ("int4range", "STRING", {"[1,5]": "[1,6)", "empty": "empty"}),
    ("tstzrange", "STRING", {"[2024-01-01 00:00+00,)": '["2024-01-01 00:00:00+00",)'}),
    ("int4multirange", "STRING", {"{[1,2],[5,6]}": "{[1,3),[5,7)}"}),
    ("mood", "STRING", {"sad": "sad", "it's \"fine\"": "it's \"fine\""}),
    ("price", "DECIMAL(12,3)", {"1.5": Decimal("1.500")}),
    ("dear_price", "DECIMAL(12,3)", {"1.5": Decimal("1.500")}),
    ("pair", "STRING", {'(1,"a b")': '(1,"a b")'}),
    ("tags", "ARRAY<STRING>", {"{a,b}": ["a", "b"]}),
    ("integer[]", "ARRAY<INT>", {"{}": [], "{1,NULL,-3}": [1, None, -3], "{2}": [2]}),
    ("integer[]", "ARRAY<INT>", {"[0:2]={1,2,3}": [1, 2, 3]}),
    ("integer[][]", "STRING", {"{{1,2},{3,4}}": "{{1,2},{3,4}}"}),
    ("text[]", "ARRAY<STRING>", {"{}": [], "{a,b}": ["a", "b"]}),
    ("text[]", "ARRAY<STRING>", {'{"","NULL",NULL,"a,b","{x}","\\"q\\"","\\\\",é," "}': ["", "NULL", None, "a,b", "{x}", '"q"', "\\", "é", " "], "{}": []}),
    ("numeric(6,2)[]", "ARRAY<DECIMAL(6,2)>", {"{1.5,NULL}": [Decimal("1.50"), None]}),
    ("bytea[]", "ARRAY<BINARY>", {'{"\\\\x00ff",NULL,"\\\\x"}': [b"\x00\xff", None, b""]}),
    ("boolean[]", "ARRAY<BOOLEAN>", {"{t,f,NULL}": [True, False, None]}),
    ("timestamptz[]", "ARRAY<TIMESTAMP>", {'{"2024-01-01 00:00:00+00",infinity}': [dt.datetime(2024, 1, 1, tzinfo=UTC), LAST.replace(tzinfo=UTC)]}),
    ("jsonb[]", "ARRAY<STRING>", {'{"{\\"a\\": 1}"}': ['{"a": 1}']}),
    ("box[]", "ARRAY<STRING>", {"{(3,4),(1,2);(7,8),(5,6)}": ["(3,4),(1,2)", "(7,8),(5,6)"]}),
    ("mood[]", "ARRAY<STRING>", {"{sad,NULL}": ["sad", None]}),
    ("price[]", "ARRAY<DECIMAL(12,3)>", {"{1.5}": [Decimal("1.500")]}),
    ("pair[]", "ARRAY<STRING>", {'{"(1,a)"}': ["(1,a)"]}),
    ("vector(3)", "STRING", {"[1,2,3]": "[1,2,3]"}),
]  # fmt: skip

DEFINITIONS = """
CREATE TYPE mood AS ENUM ('sad', 'it''s "fine"');
CREATE DOMAIN price AS numeric(12,3) CHECK (value >= 0);
CREATE DOMAIN dear_price AS price CHECK (value > 1);
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN tags AS text[];
CREATE EXTENSION vector;
"""


def test_every_type_is_captured_as_documented_by_the_stream_and_by_copy(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run(DEFINITIONS)
        for number, (kind, expected, values) in enumerate(EXACT):
            name = f"t{number}"
            database.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})")
            # Once few, which are taken apart one by one, and once many.
            literals = [*values, None] * (1 if number % 2 else 20)
            with database.session.transaction():
                for at, literal in enumerate(literals):
                    database.run(f"INSERT INTO {name} VALUES ({at}, %s::text::{kind})", literal)
            changes = database.only_changes()
            meant = [*values.values(), None] * (1 if number % 2 else 20)
            assert changes.batch.schema.field("v").type == parse_type(expected), kind
            assert changes.batch["v"].to_pylist() == meant, kind
            copied = database.copy(name).sort_by("id")
            assert copied["v"].to_pylist() == meant, kind
            changes.batch.validate(full=True)
            copied.validate(full=True)


@pytest.mark.parametrize("kind", ["real", "double precision"])
def test_nan_is_captured_as_nan(postgres_url: str, kind: str) -> None:
    with replay(postgres_url) as database:
        database.run(f"CREATE TABLE t (v {kind})")
        database.run("INSERT INTO t VALUES ('NaN'), (NULL)")
        first, second = database.only_changes().batch["v"].to_pylist()
        assert math.isnan(first)
        assert second is None


def test_times_of_any_year_are_exact_where_microseconds_reach(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, d date, at timestamp, z timestamptz)")
        database.run("SET timezone = 'UTC'")
        rows = [
            ("4713-01-01 BC", "4713-01-01 00:00:00 BC", "4713-01-01 00:00:00.000001+00 BC"),
            ("5874897-12-31", "294246-12-31 23:59:59.999999", "10000-01-01 00:00:00+00"),
            ("2024-02-29", "0001-12-31 23:59:59 BC", "0005-02-29 00:00:00+00 BC"),
        ]
        for at, row in enumerate(rows):
            database.run("INSERT INTO t VALUES (%s, %s, %s, %s)", at, *row)
        batch = database.only_changes().batch
        expected = "SELECT (d - date '1970-01-01')::bigint, (extract(epoch from at) * 1000000)::bigint, (extract(epoch from z) * 1000000)::bigint FROM t ORDER BY id"
        numbers = list(zip(*database.run(expected).fetchall(), strict=True))
        assert batch["d"].cast(pa.int32()).to_pylist() == list(numbers[0])
        assert batch["at"].cast(pa.int64()).to_pylist() == list(numbers[1])
        assert batch["z"].cast(pa.int64()).to_pylist() == list(numbers[2])


@pytest.mark.parametrize(
    ("kind", "value", "named"),
    [
        ("numeric(10,2)", "NaN", "DECIMAL(10,2)"),
        ("timestamp", "294276-12-31", "TIMESTAMP_NTZ"),
        ("int[]", "{{1,2},{3,4}}", "ARRAY<INT>"),
        ("text[]", '{{a,"b c"}}', "ARRAY<STRING>"),
    ],
)
def test_a_value_without_counterpart_is_refused_by_name_and_the_column_can_be_text(
    postgres_url: str, kind: str, value: str, named: str
) -> None:
    with replay(postgres_url) as database:
        database.run(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
        database.run(f"INSERT INTO t VALUES (1, NULL), (2, %s::text::{kind})", value)
        for read in (lambda: database.copy("t"), database.only_changes):
            with raises(BadRowError, column="v", expected=named) as caught:
                read()
            assert "types = 'public.t.v STRING'" in (caught.value.hint or "")
        ((shown,),) = database.run("SELECT v::text FROM t WHERE id = 2")
        assert database.copy("t", {"v": pa.string()})["v"].to_pylist() == [None, shown]


def test_a_numeric_without_precision_can_be_declared_a_decimal(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (v numeric, j json)")
        database.run("INSERT INTO t VALUES (1.5, '1')")
        declared = {"v": pa.decimal128(20, 4)}
        assert database.copy("t", declared)["v"].to_pylist() == [Decimal("1.5000")]
        database.run("INSERT INTO t VALUES (1.55555, '1')")
        with raises(BadRowError, column="v", value=b"1.55555", expected="DECIMAL(20,4)"):
            database.copy("t", declared)
        with raises(SchemaError, table="public.t", column="j"):
            database.copy("t", {"j": pa.int64()})


def test_text_that_is_not_unicode_is_refused_by_copy_and_by_the_stream(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (v text)")
        database.run("INSERT INTO t VALUES ('abc')")
        table = database.table("t")
        with raises(BadRowError, column="v"):
            decode_copy([b"\xff\n"], table)
        database.feed()
        (run,) = database.gathering.take()
        run.messages = [message.replace(b"abc", b"a\xffc") for message in run.messages]
        with raises(BadRowError, column="v"):
            decode(run, table)
