"""Retired words do not come back: pages, docstrings, names and texts of the package use the words of GLOSSARY.md.

Checked are the prose of pages (text outside code), the docstrings and comments of the package, the names that it defines or
assigns, its strings, and the files of the console. Text in backticks and single quotes is left out: it names what is stored or
typed, which keeps its name. `STORED` lists the names and strings that keep a retired word, each with its reason.

Not covered yet:

- docs/decisions, docs/formats and docs/contributing; docs/benchmarks.md, which a program writes;
- names of tests, and of the contracts in `headwater.testing`, which users subclass;
- words that are retired in one meaning and ordinary English in another: held, level (as a noun), lanes, masters, meet, moment,
  past, places, promise (in prose), sealing (of segments), slot, standing, unit, unread.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.repo.tree import PACKAGE, ROOT, files, markdown, parsed, prose, shown, source_text, sources

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
RETIRED_IN_NAMES = {
    "anew": (r"\banew\b", "rebuild"),
    "beside": (r"\bbeside\b", "shadow, of a build; derived, of relations"),
    "trial": (r"\btrials?\b", "verification of a shadow build"),
    "figures": (r"\bfigures\b", "totals"),
    "lacking": (r"\blacking\b", "missing, pending"),
    "look": (r"\blook(s|ing|ed)?\b(?! (up|ahead|behind|into)\b)", "check, probe, poll, scan"),
    "meeting": (r"\bmeet(ing|s)?\b", "match, pair, overlap"),
    "news": (r"\bnews\b", "status board; changed, of a condition variable"),
    "promise": (r"\bpromises?\b", "producer watermark"),
    "silence": (r"\bsilence\b", "idle partition"),
    "spelled": (r"\bspelled\b", "canonical name"),
    "tell": (r"\btells?\b(?! apart)", "report; identify"),
}
"""Retired as names; as words of a sentence most of them are ordinary English."""

_OF_ALERTS = "a column of the topic `_alerts`"
_OF_DELETIONS = "a key of the catalog entry `deletion`"
_OF_CHECKPOINTS = "a key of the checkpoint of a sink, and a column of the table of checkpoints in Postgres"
_OF_SINKS = "a key of `sinks[]` in `headwater status --json` and `headwater verify --json`"
_STATE_OF_SINKS = "the state of a sink, and a count, in `outside.json`"
STORED = {
    "deeds": ("a key of `headwater dead show --json`", ("cli/commands/dead.py",)),
    "buried": ("a key of the totals in the checkpoint of a queue", ("queues/queue_state.py",)),
    "in_force": ("a key of the catalog entry `sink_versions`", ("sinks/topic/versions.py",)),
    "letters anew": ("a kind of catalog entry", ("connectors/dead_letter_store/sink_letters.py",)),
    "mended": (
        _OF_DELETIONS,
        ("engine/deletion/rebuild_after_delete.py", "log/deletion_entries.py"),
    ),
    "told": (_OF_ALERTS, ("catalog/system_relations.py", "connectors/alerts/alert_episodes.py")),
    "withheld": (
        f"{_OF_SINKS}; {_OF_CHECKPOINTS}",
        (
            "cli/commands/maintenance.py",
            "cli/commands/status.py",
            "cli/listings.py",
            "connectors/supervisor.py",
            "metrics.py",
            "sinks/base/sink_status.py",
            "sinks/base/sink_verify.py",
            "sinks/base/target.py",
            "sinks/postgres/positions.py",
            "web/console/console_data.py",
            "web/console/static/detail.js",
        ),
    ),
}
"""Names and strings that keep a retired word: why, and the files of the package that have them. docs/compatibility.md lists each."""
OTHERS = {
    "levelling": (
        _STATE_OF_SINKS,
        ("sinks/base/applier.py", "sinks/base/sink_status.py", "web/console/static/parts.js"),
    ),
    "levelled": (_STATE_OF_SINKS, ("sinks/base/sink_status.py",)),
    "tell": ("a method of files in Python", ("core/storage.py",)),
}
"""The same for what docs/compatibility.md does not list."""
KEPT = {**STORED, **OTHERS}
CONTRACTS = "testing/"
"""Methods of the contracts in this folder are inherited by tests of users, who name them to skip or extend them."""

_NAMED = re.compile(r"`[^`]*`|(?<!\w)'[^'\s]*'")
ONLY_PAGES = {"follower"}
"""In the package a follower is also the process of a group commit that waits for another to sync."""


def retired(text: str, words: Mapping[str, tuple[str, str]] = RETIRED) -> Iterator[tuple[str, str]]:
    """The retired words of a text, and what to say instead."""
    bare = _NAMED.sub("", text)
    for word, (pattern, instead) in words.items():
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


def defined(path: Path) -> Iterator[tuple[int, str]]:
    """The names that a module defines, assigns or takes as parameters."""
    for node in ast.walk(parsed(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.alias(asname=str(name)):
                yield 1, name


def words_of(name: str) -> str:
    """The words of a name, split at underscores and capitals: `_heldForm` is `held form`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_+", " ", name).strip().lower()


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that are not docstrings: texts that people read, and what is stored."""
    docstrings: set[int] = set()
    for node in ast.walk(parsed(path)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            if isinstance(statement, ast.Expr):
                docstrings.add(id(statement.value))
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield node.lineno, text


def console_lines() -> Iterator[tuple[Path, int, str]]:
    """The lines of the files of the console, which a browser shows."""
    for path in files():
        if path.is_relative_to(PACKAGE) and path.suffix in {".html", ".js"}:
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
                yield path, number, line


def without_kept(path: Path, text: str) -> str:
    """A text without the stored words that this file may have."""
    own = path.relative_to(PACKAGE).as_posix()
    for kept, (_, places) in KEPT.items():
        if own in places:
            text = re.sub(rf"\b{kept}\b", "", text)
    return text


def report(found: Iterable[tuple[Path, int, str]], words: Mapping[str, tuple[str, str]]) -> str:
    """A line for every retired word in texts of files."""
    return "\n".join(
        f"{shown(path)}:{number}: {word!r} in {text.strip()[:80]!r}: say {instead}"
        for path, number, text in found
        for word, instead in retired(without_kept(path, text), words)
        if word not in ONLY_PAGES
    )


def test_names_use_no_retired_word() -> None:
    names = (
        (path, number, name if name in KEPT else words_of(name))
        for path in sources()
        for number, name in defined(path)
        if not (name.startswith("test_") and shown(path).startswith(f"src/headwater/{CONTRACTS}"))
    )
    wrong = report(names, {**RETIRED, **RETIRED_IN_NAMES})
    assert not wrong, wrong


def test_strings_use_no_retired_word() -> None:
    wrong = report(((path, *line) for path in sources() for line in strings(path)), RETIRED)
    assert not wrong, wrong


def test_files_of_the_console_use_no_retired_word() -> None:
    lines = list(console_lines())
    assert lines
    wrong = report(lines, RETIRED)
    assert not wrong, wrong


def test_stored_words_are_listed_and_still_there() -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    for word, (reason, places) in KEPT.items():
        if word in STORED:
            assert re.search(rf"`(\w+\[\]\.)?{word}`", page), f"{word}: {reason}"
        for place in places:
            text = (PACKAGE / place).read_text(encoding="utf-8")
            assert re.search(rf"\b{word}\b", text), f"{place} has no {word!r} any more"


def test_a_retired_word_is_found_in_names() -> None:
    words = {**RETIRED, **RETIRED_IN_NAMES}
    for name in ("_told", "ToldRows", "beside_engine", "is_on_trial", "let_go", "LOOK_EVERY_MS"):
        assert list(retired(words_of(name), words)), name
    for name in ("look_up", "told_apart", "spelling", "JournalReader", "level"):
        assert not list(retired(words_of(name), words)), name
