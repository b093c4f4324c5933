"""Queries for the fuzzer: a grammar of SELECTs over the relations of its workspace, with some words that do not belong."""

from __future__ import annotations

from random import Random

from tests.web.fuzz_values import NUMBERS, TEXTS, TIMES

RELATIONS = {
    "typed": (
        "id",
        "flag",
        "small",
        "price",
        "wide",
        "ratio",
        "name",
        "raw",
        "day",
        "at",
        "tags",
        "place",
        "counts",
        "_offset",
    ),
    "latest": ("id", "name", "at", "price"),
    "per_name": ("name", "n", "total"),
    "priced": ("id", "amount"),
    "priced.errors": ("id", "amount"),
    "orders": ("id", "amount"),
}
FUNCTIONS = (
    *(
        "upper",
        "lower",
        "length",
        "abs",
        "round",
        "floor",
        "ceil",
        "coalesce",
        "nullif",
        "concat",
        "substring",
        "trim",
        "sqrt",
    ),
    *(
        "date_trunc",
        "year",
        "month",
        "to_date",
        "to_timestamp",
        "date_add",
        "unix_timestamp",
        "hex",
        "unhex",
        "md5",
        "array",
        "size",
    ),
    *(
        "element_at",
        "map_keys",
        "explode",
        "cast",
        "if",
        "greatest",
        "least",
        "regexp_extract",
        "split",
        "reflect",
        "java_method",
    ),
    *(
        "current_timestamp",
        "input_file_name",
        "window",
        "named_struct",
        "format_number",
        "date_format",
        "from_json",
        "pow",
        "mod",
    ),
)
AGGREGATES = (
    "count",
    "sum",
    "min",
    "max",
    "avg",
    "first",
    "collect_list",
    "stddev",
    "approx_count_distinct",
    "count(DISTINCT",
)
TYPES = (
    "INT",
    "BIGINT",
    "DECIMAL(38, 18)",
    "DECIMAL(1, 1)",
    "DOUBLE",
    "STRING",
    "DATE",
    "TIMESTAMP",
    "BINARY",
    "ARRAY<INT>",
    "NOPE",
)


def query(rng: Random) -> str:
    """A query, at times with a word that is put in, left out or exchanged."""
    found = select(rng, 0)
    if rng.random() < 0.25:
        words = found.split(" ")
        at = rng.randrange(len(words))
        match rng.randrange(4):
            case 0:
                del words[at]
            case 1:
                words.insert(
                    at,
                    rng.choice(
                        (
                            *TEXTS,
                            "(",
                            ")",
                            ";",
                            "--",
                            "/*",
                            "SELECT",
                            "FROM",
                            "WITH",
                            "?",
                            ":a",
                            "DROP VIEW per_name",
                        )
                    ),
                )
            case 2:
                words[at] = rng.choice(words)
            case _:
                words[at] = rng.choice(TEXTS)
        found = " ".join(words)
    return found


def select(rng: Random, depth: int) -> str:
    """One SELECT."""
    relation = (
        rng.choice(list(RELATIONS))
        if rng.random() < 0.95
        else rng.choice(("nothing", "`a b`", "json.`/etc/passwd`", "range(10)"))
    )
    columns = RELATIONS.get(relation, ("id",))
    source = relation
    if depth < 2 and rng.random() < 0.12:
        source = f"( {select(rng, depth + 1)} ) AS q"
    if rng.random() < 0.12:
        other = rng.choice(list(RELATIONS))
        source += f" {rng.choice(('JOIN', 'LEFT JOIN', 'FULL JOIN', 'LEFT SEMI JOIN'))} {other} AS o ON {columns[0]} = o.{RELATIONS[other][0]}"
    grouped = rng.random() < 0.25
    if grouped:
        key = expression(rng, columns, 2)
        items = f"{key} , {rng.choice(AGGREGATES).replace('(DISTINCT', '( DISTINCT')} ( {rng.choice(columns)} ) AS n"
        items = items.replace("( DISTINCT (", "( DISTINCT")
    else:
        key = ""
        items = (
            " , ".join(expression(rng, columns, 0) for _ in range(rng.randint(1, 3)))
            if rng.random() < 0.8
            else "*"
        )
    found = f"SELECT {'DISTINCT ' if rng.random() < 0.08 else ''}{items} FROM {source}"
    if rng.random() < 0.5:
        found += f" WHERE {condition(rng, columns, 0)}"
    if grouped:
        found += f" GROUP BY {key}"
    if rng.random() < 0.2:
        found += f" ORDER BY {expression(rng, columns, 2)} {rng.choice(('', 'DESC', 'NULLS LAST'))}"
    if rng.random() < 0.2:
        found += f" LIMIT {rng.choice(('0', '1', '10', '-1', '9223372036854775807', '99999999999999999999', '1.5', 'ALL'))}"
    if depth == 0 and rng.random() < 0.05:
        found += f" UNION ALL {select(rng, 1)}"
    return found


def condition(rng: Random, columns: tuple[str, ...], depth: int) -> str:
    """What a WHERE may say."""
    if depth < 2 and rng.random() < 0.25:
        return f"( {condition(rng, columns, depth + 1)} {rng.choice(('AND', 'OR'))} NOT {condition(rng, columns, depth + 1)} )"
    left = expression(rng, columns, 1)
    match rng.randrange(6):
        case 0:
            return f"{left} IS NULL"
        case 1:
            return f"{left} IN ( {literal(rng)} , {literal(rng)} )"
        case 2:
            return f"{left} BETWEEN {literal(rng)} AND {literal(rng)}"
        case 3:
            return f"{left} {rng.choice(('LIKE', 'RLIKE'))} {_quoted(rng.choice(TEXTS))}"
        case _:
            return f"{left} {rng.choice(('=', '<', '>=', '<>', '<=>'))} {expression(rng, columns, 1)}"


def expression(rng: Random, columns: tuple[str, ...], depth: int) -> str:
    """A value of some type."""
    roll = rng.random()
    if roll < 0.45 or depth > 2:
        return rng.choice(columns) if rng.random() < 0.97 else "nothing"
    if roll < 0.6:
        return literal(rng)
    if roll < 0.72:
        operator = rng.choice(("+", "-", "*", "/", "%", "||", "&"))
        return f"( {expression(rng, columns, depth + 1)} {operator} {expression(rng, columns, depth + 1)} )"
    if roll < 0.84:
        arguments = " , ".join(expression(rng, columns, depth + 1) for _ in range(rng.randint(0, 3)))
        return f"{rng.choice(FUNCTIONS)} ( {arguments} )"
    if roll < 0.92:
        return f"{rng.choice(('CAST', 'TRY_CAST'))} ( {expression(rng, columns, depth + 1)} AS {rng.choice(TYPES)} )"
    if roll < 0.96:
        return f"CASE WHEN {condition(rng, columns, 2)} THEN {literal(rng)} ELSE {literal(rng)} END"
    return f"row_number ( ) OVER ( PARTITION BY {rng.choice(columns)} ORDER BY {rng.choice(columns)} )"


def literal(rng: Random) -> str:
    """A number, a text or a time."""
    match rng.randrange(4):
        case 0:
            return rng.choice(NUMBERS) or "0"
        case 1:
            return _quoted(rng.choice(TEXTS))
        case 2:
            return f"{rng.choice(('TIMESTAMP', 'DATE', 'INTERVAL', ''))} {_quoted(rng.choice(TIMES))}"
        case _:
            return str(rng.randint(-10, 100))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
