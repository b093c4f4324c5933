"""Random topics and rows: few types, small domains, so that groups, joins and duplicates collide."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tests.equation.grammar.model import Column, Row, Topic

STRUCTS = ("STRUCT<x: BIGINT, y: STRING>", "STRUCT<d: DOUBLE, t: DATE>")
NESTED = ("ARRAY<STRING>", "ARRAY<BIGINT>", *STRUCTS)
SCALARS = ("BIGINT", "INT", "STRING", "DOUBLE", "DECIMAL(10,2)", "DATE", "TIMESTAMP", "BOOLEAN")
KEYS = ("BIGINT", "INT", "STRING", "DATE", "DECIMAL(10,2)", "TIMESTAMP")

NOON = datetime(2024, 3, 1, 12, tzinfo=UTC)
SMALL_BOUND = 7
SMALL_INTEGERS = (-2, 0, 1, 2, 3, 4, 5)
WIDE = {
    "BIGINT": (2**62, -(2**62), 2**53 + 1, 2**53),
    "INT": (2**31 - 1, -(2**31 - 1), 2**30),
    "DECIMAL(10,2)": (Decimal("99999999.99"), Decimal("-99999999.99")),
}
DYADIC = (0.0, 0.25, -0.5, 1.5, 2.0, -3.75, 4.0)
SPECIAL = (-0.0, math.nan, math.inf, -math.inf)
POSITIVE = (0.1, 0.2, 0.7, 19.99, 100.01, 1234.5)
FAR = (1e300, -1e300, 5e-324, 1.7976931348623157e308, -0.1)
TEXTS = ("", "a", "b", "A", "ab", "a b", "é", "日本", "😀", "10", "%_", "\u00a0")


def random_topic(rng: random.Random, name: str, features: frozenset[str]) -> Topic:
    """A plain or keyed topic of three to six columns."""
    kinds = [rng.choice(SCALARS) for _ in range(rng.randint(2, 4))]
    # A number, a text and a time in most topics: what keys, groups and windows are made of.
    kinds += [kind for kind in ("BIGINT", "STRING", "TIMESTAMP") if rng.random() < 0.55 and kind not in kinds]
    if "nested_types" in features:
        kinds += [rng.choice(NESTED) for _ in range(rng.choice((0, 1, 1, 2)))]
    columns = [_column(rng, chr(ord("a") + i), kind, features) for i, kind in enumerate(kinds)]
    key: tuple[str, ...] = ()
    if "keyed_topics" in features and rng.random() < 0.4:
        names = [c.name for c in columns if c.kind in KEYS]
        wanted = 2 if "compound_keys" in features and rng.random() < 0.4 else 1
        key = tuple(rng.sample(names, min(wanted, len(names))))
    partitions = rng.randint(1, 3) if "partitions" in features else 1
    return Topic(name, tuple(columns), key, partitions)


def _column(rng: random.Random, name: str, kind: str, features: frozenset[str]) -> Column:
    wide = "extremes" in features and rng.random() < 0.2
    if kind == "DOUBLE":
        return Column(name, kind, floats="" if wide else rng.choice(("dyadic", "dyadic", "positive")))
    if kind in WIDE:
        bounds = {"BIGINT": 2**62, "INT": 2**31 - 1, "DECIMAL(10,2)": 10**8}
        return Column(name, kind, bound=bounds[kind] if wide else SMALL_BOUND)
    return Column(name, kind)


def random_row(rng: random.Random, topic: Topic, features: frozenset[str]) -> Row:
    """A row; one in seven values is NULL, keys never are."""
    return {
        c.name: None
        if c.name not in topic.key and "nulls" in features and rng.random() < 0.15
        else random_value(rng, c, features)
        for c in topic.columns
    }


def random_value(rng: random.Random, column: Column, features: frozenset[str]) -> Any:
    """A value that is not NULL, though its elements and fields may be."""
    match column.kind:
        case "BIGINT" | "INT":
            return _number(rng, column, rng.choice(SMALL_INTEGERS))
        case "DECIMAL(10,2)":
            return _number(rng, column, Decimal(rng.choice((-150, 0, 5, 100, 101, 250, 699))) / 100)
        case "DOUBLE":
            return _double(rng, column.floats, features)
        case "STRING":
            return rng.choice(TEXTS)
        case "BOOLEAN":
            return rng.random() < 0.5
        case "DATE":
            return _date(rng)
        case "TIMESTAMP":
            if "extremes" in features and rng.random() < 0.05:
                return datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
            moment = timedelta(minutes=rng.choice((0, 1, 4, 5, 9, 10, 11, 30, 59, 60)))
            return NOON + moment + timedelta(microseconds=rng.choice((0, 0, 1, 999_999)))
        case "ARRAY<STRING>":
            return [_maybe(rng, rng.choice(TEXTS), features) for _ in range(rng.randint(0, 3))]
        case "ARRAY<BIGINT>":
            return [_maybe(rng, rng.choice(SMALL_INTEGERS), features) for _ in range(rng.randint(0, 3))]
        case "STRUCT<x: BIGINT, y: STRING>":
            x, y = rng.choice(SMALL_INTEGERS[:3]), rng.choice(TEXTS[:4])
            return {"x": _maybe(rng, x, features), "y": _maybe(rng, y, features)}
        case "STRUCT<d: DOUBLE, t: DATE>":
            d, t = _double(rng, "dyadic", features), _date(rng)
            return {"d": _maybe(rng, d, features), "t": _maybe(rng, t, features)}
    raise ValueError(f"no values of {column.kind}")


def _number(rng: random.Random, column: Column, small: Any) -> Any:
    return rng.choice(WIDE[column.kind]) if column.bound > SMALL_BOUND and rng.random() < 0.4 else small


def _double(rng: random.Random, floats: str, features: frozenset[str]) -> float:
    if floats == "positive":
        return rng.choice(POSITIVE)
    if "special_floats" in features and rng.random() < 0.25:
        return rng.choice(SPECIAL)
    return rng.choice(DYADIC if floats == "dyadic" or rng.random() < 0.6 else FAR)


def _date(rng: random.Random) -> date:
    return rng.choice((date(2024, 2, 28), date(2024, 2, 29), date(2024, 3, 1), date(1969, 12, 31)))


def _maybe(rng: random.Random, value: Any, features: frozenset[str]) -> Any:
    return None if "nulls" in features and rng.random() < 0.15 else value
