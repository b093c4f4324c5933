"""Retired words do not come back: the pages and the docstrings use those of GLOSSARY.md.

Checked are the prose of pages (text outside code) and the docstrings and comments of the package. Text in backticks and
single quotes is left out: it names what is stored or typed, which keeps its name.

Not covered yet:

- names and strings of the code: `told`, `deed`, `shelf`, `withheld`, `bulletin`, `veil`, `promises` and others are still names
  of functions, fields of records on disk (docs/compatibility.md), and words of messages that tests assert;
- docs/decisions, docs/formats and docs/contributing; docs/benchmarks.md, which a program writes;
- words that are retired in one meaning and ordinary English in another: figures, held, level (as a noun), lanes, lacking,
  masters, meet, moment, news, past, places, promise (of an interface), sealing (of segments), slot, standing, unit, unread.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.repo.tree import ROOT, markdown, parsed, prose, shown, source_text, sources

UNCHECKED_PAGES = {
    "docs/benchmarks.md": "written by `python -m benchmarks --write-docs`",
    "docs/compatibility.md": "lists what is stored",
}
ALLOWED = {
    ("docs/home-timeline.md", "follower"): "people who follow people",
    ("docs/sql.md", "take back"): "quotes a message, which tests compare",
}

RETIRED = {
    "anew": (r"\banew\b", "again; rebuilt, for views"),
    "built again": (r"\b(built|made) again\b", "rebuilt"),
    "take back": (r"\b(take|takes|taking|took|taken)( \w+){0,2} back\b", "retract"),
    "built beside": (r"\b(build|builds|built|rebuilt|filled)( \w+){0,3} beside\b", "shadow build"),
    "on trial": (r"\bon trial\b", "shadow build"),
    "told": (r"\btold\b(?! apart|\()", "reported"),
    "tell of": (r"\b(tell|tells|telling) of\b", "report"),
    "withheld": (r"\bwithheld\b", "rejected rows"),
    "shelf": (r"\b(shelf|shelves)\b", "dead-letter store"),
    "deed": (r"\bdeeds?\b", "dead-letter action"),
    "bury": (r"\b(buries|buried|burying)\b", "dead-letter"),
    "held form": (r"\bheld form\b", "stored form"),
    "levelling": (r"\blevell?(ing|ed)\b", "reconcile"),
    "bring level": (r"\b(bring|brings|bringing|brought)( \w+){0,2} level\b", "reconcile"),
    "follower": (r"\bfollowers?\b", "sink, of an external system; subscription, of a program"),
    "mend": (r"\b(mend|mends|mended|mending)\b", "correct; retract, of deletions"),
    "veil": (r"\b(un)?veil(s|ed|ing)?\b", "encrypt, decrypt"),
    "hidden columns": (r"\bhidden columns?\b", "metadata columns"),
    "producer's promise": (r"\bproducers?('s?)?( who)? promis", "producer watermark"),
    "silent partition": (r"\bsilent partitions?\b|\bpartitions?( \w+){1,2} silent\b", "idle partition"),
    "punctual": (r"\bpunctual\b", "on time"),
    "spreading": (r"\bspreading\b", "window pre-aggregation"),
    "bulletin": (r"\bbulletin\b", "status board"),
    "in force": (r"\bin force\b", "active"),
    "let go": (r"\b(let|lets|letting) go\b", "remove, release"),
    "the outside": (r"\b(an|the|whose) outside\b", "external system"),
}
_NAMED = re.compile(r"`[^`]*`|(?<!\w)'[^'\s]*'")
ONLY_PAGES = {"follower"}
"""In the package a follower is also the process of a group commit that waits for another to sync."""


def retired(text: str) -> Iterator[tuple[str, str]]:
    """The retired words of a text, and what to say instead."""
    bare = _NAMED.sub("", text)
    for word, (pattern, instead) in RETIRED.items():
        if re.search(pattern, bare, re.IGNORECASE):
            yield word, instead


def page_lines() -> Iterator[tuple[str, int, str]]:
    """The prose of the pages at the top and in docs/."""
    for page in markdown():
        if page.parent in (ROOT, ROOT / "docs") and shown(page) not in UNCHECKED_PAGES:
            for number, line in prose(page):
                yield shown(page), number, line


def source_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings (of fields, too) and comments of a module."""
    for node in ast.walk(parsed(path)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield from enumerate(text.splitlines(), start=statement.lineno)
    for token in tokenize.generate_tokens(io.StringIO(source_text(path)).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_pages_use_no_retired_word() -> None:
    wrong = [
        f"{page}:{number}: {word!r}: say {instead}"
        for page, number, line in page_lines()
        for word, instead in retired(line)
        if (page, word) not in ALLOWED
    ]
    assert not wrong, "\n".join(wrong)


def test_docstrings_and_comments_use_no_retired_word() -> None:
    wrong = [
        f"{shown(path)}:{number}: {word!r}: say {instead}"
        for path in sources()
        for number, line in source_lines(path)
        for word, instead in retired(line)
        if word not in ONLY_PAGES
    ]
    assert not wrong, "\n".join(wrong)


def test_a_retired_word_is_found_in_prose_and_not_in_what_is_stored() -> None:
    assert [word for word, _ in retired("The view is built anew, and the old row taken back.")] == [
        "anew",
        "take back",
    ]
    assert not list(
        retired("`withheld` counts rows; a sink is 'levelling'; values that cannot be told apart")
    )
