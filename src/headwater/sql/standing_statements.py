"""Parsers of the statements about standing queries, and the form in which a view's query declares them.

CREATE STANDING QUERY creates a view whose query is not a SELECT:
`STANDING QUERIES OF news_queries ON articles (title, body) WITH (language = 'english')`. This text is the only place that
records where the queries are stored, which documents they match and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headwater.catalog import statement_options
from headwater.catalog.options import names_of
from headwater.catalog.view_definitions import STANDING, check_view
from headwater.core.errors import UsageError
from headwater.core.types import RELATION_KEYWORDS, quote
from headwater.sql.clauses import check_unquoted, checked, read_new_name, read_options
from headwater.sql.lexer import Words, shown

OPTIONS = names_of(statement_options.STANDING_QUERY)
QUERIES = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("query", pa.string(), nullable=False),
        pa.field("kind", pa.string()),
        pa.field("owner", pa.string()),
        pa.field("backfill", pa.string()),
        pa.field("allow_scans", pa.bool_()),
    ]
)
"""Columns of a topic of stored queries, whose key is `id`."""


@dataclass(frozen=True)
class StandingDefinition:
    """Declaration of standing queries: topic of the queries, topic of the documents, and options."""

    topic: str
    """Topic whose records are the documents."""
    queries: str
    """Keyed topic whose records are the queries."""
    fields: tuple[str, ...] = ()
    """Columns of the documents to which queries can refer; an empty tuple means all columns."""
    text: tuple[str, ...] | None = None
    """Columns that are tokenized into words; None for every STRING column that is not part of the key."""
    language: str | None = None
    accents: bool = True
    operator: str = "or"
    """Operator between adjacent words of a query: 'or' or 'and'."""
    show: tuple[str, ...] = ()
    """Document columns that matches show in addition to the document's ID."""
    backfill: bool = True
    """Whether queries may match earlier documents, which are kept for this purpose."""
    allow_scans: bool = False
    """Whether queries are accepted that must be evaluated on every document."""

    @property
    def sql(self) -> str:
        """The query of the view of matches, which `parse_standing` parses."""
        columns = f" ({', '.join(map(quote, self.fields))})" if self.fields else ""
        return f"{STANDING}{quote(self.queries)} ON {quote(self.topic)}{columns}{self._with()}"

    def _with(self) -> str:
        options: dict[str, str] = {}
        if self.text is not None:
            options["text"] = _literal(", ".join(self.text))
        if self.language is not None:
            options["language"] = _literal(self.language)
        if not self.accents:
            options["accents"] = "FALSE"
        if self.operator != "or":
            options["operator"] = _literal(self.operator)
        if self.show:
            options["show"] = _literal(", ".join(self.show))
        if not self.backfill:
            options["backfill"] = "FALSE"
        if self.allow_scans:
            options["allow_scans"] = "TRUE"
        listed = ", ".join(f"{name} = {value}" for name, value in options.items())
        return f" WITH ({listed})" if listed else ""


@dataclass(frozen=True)
class CreateStanding:
    """Create standing queries: a topic that stores queries, and a view of the documents that match them. Documents
    are the records of `topic`; the columns are those that queries can refer to.

    Syntax::

        CREATE [OR REPLACE] STANDING QUERY [IF NOT EXISTS] name
          ON topic [(column, ...)]
          [WITH (option = value, ...)]

    Example::

        CREATE STANDING QUERY news ON articles (title, body) WITH (language = 'english')
    """

    name: str
    standing: StandingDefinition
    if_not_exists: bool = False
    or_replace: bool = False
    source: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class DropStanding:
    """Drop standing queries: the view of matches, and the topic of the stored queries if nothing else reads it.

    Syntax::

        DROP STANDING QUERY [IF EXISTS] name [CASCADE]

    Example::

        DROP STANDING QUERY news
    """

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class ShowStanding:
    """List the standing queries, with the number of stored queries of each.

    Syntax::

        SHOW STANDING QUERIES

    Example::

        SHOW STANDING QUERIES
    """


def create_standing(words: Words, replace: bool) -> CreateStanding:
    """Parse the rest of CREATE [OR REPLACE] STANDING."""
    if not words.accept("QUERY"):
        words.expect("QUERIES", hint="write CREATE STANDING QUERY name ON topic (column, ...)")
    lenient, name = read_new_name(words, replace, "standing query")
    check_unquoted(words, name, RELATION_KEYWORDS, "view")
    checked(words, name, name, lambda: check_view(name.text))
    words.expect("ON", hint=f"write CREATE STANDING QUERY {quote(name.text)} ON topic (column, ...)")
    standing = _standing(words, f"{name.text}_queries")
    return CreateStanding(name.text, standing, lenient, replace, words.text)


def drop_standing(words: Words) -> DropStanding:
    """Parse the rest of DROP STANDING."""
    if not words.accept("QUERY"):
        words.expect("QUERIES", hint="write DROP STANDING QUERY name")
    lenient = words.accept("IF", "EXISTS")
    name = words.name("the name of the standing query").text
    return DropStanding(name, lenient, words.accept("CASCADE"))


@lru_cache(maxsize=256)
def parse_standing(query: str) -> StandingDefinition | None:
    """Return the standing queries whose matches a view shows; None if the view's query is a SELECT."""
    if not query.startswith(STANDING):
        return None
    words = Words(query)
    words.expect("STANDING", "QUERIES", "OF")
    queries = words.name("a topic").text
    words.expect("ON")
    return _standing(words, queries)


def _standing(words: Words, queries: str) -> StandingDefinition:
    """Parse the part after ON, up to the end of the statement."""
    topic = words.name("the name of a topic").text
    fields: list[str] = []
    if words.accept("("):
        while not fields or words.accept(","):
            fields.append(words.name("a column").text)
        words.expect(")", hint="write columns in parentheses: ON articles (title, body)")
    first = words.next
    given = read_options(words, OPTIONS, "standing query") if words.accept("WITH") else {}
    if not words.at_end() and not words.next.is_(";"):
        words.fail(
            f"unexpected {shown(words.next)} after the end of the statement",
            hint="write options in parentheses after WITH",
            reason="not-at-end",
            found=words.next.text,
        )
    return checked(words, first, words.before(1), lambda: _definition(topic, queries, tuple(fields), given))


def _definition(
    topic: str, queries: str, fields: tuple[str, ...], given: Mapping[str, Any]
) -> StandingDefinition:
    options = {name: value for name, value in given.items() if value is not None}
    known: dict[str, Any] = {}
    for name in ("accents", "backfill", "allow_scans"):
        if name in options:
            known[name] = options.pop(name)
            if not isinstance(known[name], bool):
                raise UsageError(
                    f"option {name} is TRUE or FALSE, not {known[name]!r}",
                    hint=f"write {name} = TRUE",
                    option=name,
                    value=known[name],
                )
    for name, value in options.items():
        if not isinstance(value, str):
            raise UsageError(
                f"option {name} is a string, not {value!r}",
                hint=f"write {name} = '{value}'",
                option=name,
                value=value,
            )
        known[name] = tuple(part.strip() for part in value.split(",")) if name in ("text", "show") else value
    if known.get("operator", "or") not in ("or", "and"):
        raise UsageError(
            f"option operator is 'or' or 'and', not {known['operator']!r}",
            hint="write operator = 'and'",
            option="operator",
            value=known["operator"],
        )
    return StandingDefinition(**{"topic": topic, "queries": queries, "fields": fields} | known)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
