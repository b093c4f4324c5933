"""Writes docs/reference from the code: `python scripts/reference.py`, or `make reference`.

Every description is read from where a thing is declared: docstrings of statements, `Option` tables, fields of dataclasses, help of
metrics and commands, the OpenAPI document. A test compares the committed pages with what this script makes, and fails if something
has no description.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference.py from the code: `make reference` writes it again. -->"


@dataclasses.dataclass(frozen=True)
class Entry:
    """Something that the reference lists, with its description; a test fails if the description is empty."""

    name: str
    description: str


@dataclasses.dataclass
class Page:
    """A page of the reference: its lines, and the entries in them."""

    title: str
    intro: str
    lines: list[str] = dataclasses.field(default_factory=list)
    entries: list[Entry] = dataclasses.field(default_factory=list)

    def text(self) -> str:
        """Return the whole page."""
        body = re.sub(r"\n{3,}", "\n\n", "\n".join(self.lines)).strip()
        return f"# {self.title}\n\n{NOTE}\n\n{wrapped(self.intro)}\n\n{body}\n"

    def heading(self, text: str, depth: int = 2) -> None:
        """Begin a section."""
        self.lines += ["", f"{'#' * depth} {text}", ""]

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self.lines += [wrapped(text), ""]

    def code(self, text: str, language: str) -> None:
        """Add a fenced block."""
        self.lines += [f"```{language}", text, "```", ""]

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], describes: int = -1) -> None:
        """Add a table, each row of which is an entry; `describes` is the column with the description."""
        self.lines += [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        for row in rows:
            self.lines.append(f"| {' | '.join(map(cell, row))} |")
            self.entries.append(Entry(f"{self.title}: {row[0]}", row[describes]))
        self.lines.append("")

    def described(self, name: str, text: str) -> None:
        """Add a paragraph that describes something."""
        self.say(text)
        self.entries.append(Entry(f"{self.title}: {name}", text))


def wrapped(text: str) -> str:
    """Return a paragraph in lines of at most 140 characters."""
    return textwrap.fill(text, 140, break_long_words=False, break_on_hyphens=False)


def cell(text: str) -> str:
    """Return text for a cell of a table: on one line, with bars escaped."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Return text as code."""
    return f"`{text}`"


def prose(text: str) -> str:
    """Return text of a docstring as Markdown: what is in angle brackets and stands outside of code would be HTML."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        p if p.startswith("`") else re.sub(r"(\S*<[^\s>]+>[^\s.,;:)]*(?:\.\w+)*)", r"`\1`", p) for p in parts
    )


def unwrapped(text: str) -> list[str]:
    """Return the paragraphs of a docstring, each on one line; indented ones as they are."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return [p if p.startswith(" ") else " ".join(p.split()) for p in paragraphs]


# --- SQL ---------------------------------------------------------------------------------------------------------------


def statement_parts(kind: type) -> tuple[str, str, str]:
    """Return the description, the syntax and the example in the docstring of a statement."""
    doc = inspect.cleandoc(kind.__doc__ or "")
    found = re.fullmatch(r"(?s)(.*?)\n\nSyntax::\n\n(.*?)\n\nExample::\n\n(.*)", doc)
    if not found:
        return "", "", ""
    text, syntax, example = found.groups()
    text = " ".join(text.split())
    return text, textwrap.dedent(syntax).strip(), textwrap.dedent(example).strip()


def statement_title(syntax: str) -> str:
    """Return the keywords with which a statement begins: `CREATE TOPIC`."""
    first = re.sub(r"\[[^\]]*\]|\{[^}]*\}", " ", syntax.splitlines()[0])
    words: list[str] = []
    for word in first.split():
        if not word.isupper():
            break
        words.append(word)
    return " ".join(words)


_TITLES = {
    "CreateTopicAs": "CREATE TOPIC ... AS",
    "QueryText": "SELECT",
    "AlterSource": "ALTER SOURCE",
    "SetSource": "ALTER SOURCE ... SET",
    "SetSink": "ALTER SINK ... SET",
    "SetAlert": "ALTER ALERT ... SET",
    "AddColumn": "ALTER TOPIC ... ADD COLUMN",
    "WidenColumn": "ALTER TOPIC ... ALTER COLUMN ... TYPE",
    "DropNotNull": "ALTER TOPIC ... ALTER COLUMN ... DROP NOT NULL",
    "AcceptDrop": "ALTER TOPIC ... ALTER COLUMN ... ACCEPT DROP",
    "SetOptions": "ALTER TOPIC ... SET",
    "DropView": "DROP VIEW",
    "Describe": "DESCRIBE",
    "Explain": "EXPLAIN",
    "ExplainQuery": "EXPLAIN query",
    "ShowViews": "SHOW VIEWS",
}
"""Titles of statements that their first keywords do not give."""


def statement_kinds() -> tuple[type, ...]:
    """Return every class of statement."""
    from headwater.sql import statements

    return typing.get_args(statements.Statement)


_STATEMENT_OPTIONS = {
    "CreateTopic": "topics",
    "CreateTopicAs": "topics",
    "SetOptions": "topics",
    "CreateView": "views",
    "CreateStanding": "standing-queries",
    "CreateSource": "sources",
    "SetSource": "sources",
    "CreateSink": "sinks",
    "SetSink": "sinks",
    "CreateAlert": "alerts",
    "CreateDefaultAlerts": "alerts",
    "SetAlert": "alerts",
}


def sql_page() -> Page:
    """Return the page of SQL statements."""
    page = Page(
        "SQL statements",
        "Every statement, with its syntax and an example. Keywords ignore case; `[...]` is optional, `{a | b}` is a choice, and lower case "
        "is yours. Statements are separated by `;`. Names with other characters than letters, digits and `_`, and keywords, stand in "
        "backticks. An option's value is a string, a number, TRUE, FALSE, NULL (the default) or `env('NAME')`, which is looked up in the "
        "environment when it is needed. What a SELECT of a view can contain is in [SQL in views](../sql.md).",
    )
    for kind in statement_kinds():
        text, syntax, example = statement_parts(kind)
        title = _TITLES.get(kind.__name__) or statement_title(syntax or kind.__name__)
        page.heading(title)
        page.described(title, text)
        page.code(syntax, "text")
        if example != syntax:
            page.code(example, "sql")
        if anchor := _STATEMENT_OPTIONS.get(kind.__name__):
            page.say(f"[Options](options.md#{anchor}).")
    return page


# --- options -----------------------------------------------------------------------------------------------------------

TYPES = {
    "text": "a string",
    "columns": "names of columns, separated by commas",
    "column": "the name of a column",
    "columns with types": "columns as in CREATE TOPIC: `'id BIGINT, name STRING'`",
    "span": "a number and a unit: `'200 ms'`, `'10 minutes'`, `'7 days'`",
    "size": "a number and a unit, in powers of 1024: `'64 MB'`, `'10 GB'`; or a number of bytes",
    "whole number": "a number without quotes",
    "boolean": "TRUE or FALSE",
    "position": "`'earliest'`, `'latest'`, a datetime (the first record appended at or after it), or `{partition: offset}`",
    "list of columns": "a list of names, in Python",
    "seconds": "a number, in Python",
    "JSON object": "a string with a JSON object: `'{\"a\": 1}'`",
}
"""Words for types, as the declarations of options use them."""


def option_type(text: str) -> str:
    """Return the type of an option: the choices as code, or the word."""
    return ", ".join(code(choice.strip()) for choice in text.split("|")) if text.startswith("'") else text


def option_default(text: str) -> str:
    """Return a default: a literal as code, a phrase as it is."""
    literal = re.fullmatch(r"'[^']*'|\d+|true|false", text)
    return code(text) if literal else text


def option_rows(options: Iterable[Any], *, alter: bool) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table of options."""
    for option in options:
        changed = (("yes" if option.settable else ""),) if alter else ()
        is_choice = option.type.startswith("'") and f"'{option.default}'" in option.type
        default = code(option.default) if is_choice else option_default(option.default)
        yield (code(option.name), option_type(option.type), default, *changed, option.meaning)


def options_page() -> Page:
    """Return the page of options."""
    from headwater.catalog import connectors, statement_options
    from headwater.catalog.connector_kinds import SINK_KINDS, SOURCE_KINDS
    from headwater.connectors.manage.queue_webhooks import PostOptions
    from headwater.log.cursor import CURSOR_OPTIONS, CURSOR_READ_OPTIONS
    from headwater.log.group import MemberOptions
    from headwater.queues.queue_definition import QUEUE_OPTIONS
    from headwater.queues.queue_worker import WorkOptions
    from headwater.sinks.registry import guarantee_of
    from headwater.spark_datasource import options as spark

    page = Page(
        "Options",
        "Every option of `WITH (...)`, of queues and groups in Python, and of the Spark data source. *ALTER* says whether "
        "`ALTER ... SET` can change the option later.",
    )
    page.table(("type", "what it is"), ((word, meaning) for word, meaning in TYPES.items()))
    with_alter = ("option", "type", "default", "ALTER", "meaning")
    without = ("option", "type", "default", "meaning")
    page.heading("Topics")
    page.say(
        "Of `CREATE TOPIC`, and of `ws.topic(name, schema, ...)` as keywords: [the log](../log.md). `ws.topic` takes `key`, `time` with "
        "`lateness`, and `private` besides, for PRIMARY KEY, WATERMARK FOR and PRIVATE BY."
    )
    page.table(with_alter, option_rows(statement_options.TOPIC, alter=True))
    page.heading("Views")
    page.say(
        "Of `CREATE MATERIALIZED VIEW`; `CREATE OR REPLACE` changes them: [views](../views.md), [time](../time.md)."
    )
    page.table(without, option_rows(statement_options.VIEW, alter=False))
    page.heading("Standing queries")
    page.say("Of `CREATE STANDING QUERY`: [standing queries](../standing-queries.md).")
    page.table(without, option_rows(statement_options.STANDING_QUERY, alter=False))
    page.heading("Sources")
    page.say("Of `CREATE SOURCE name FROM kind`.")
    for name, source in SOURCE_KINDS.items():
        page.heading(f"Source: {name.upper()}", 3)
        page.described(f"source {name}", f"Guarantee: {source.guarantee}.{_extra(source.extra)}")
        page.table(with_alter, option_rows(source.options, alter=True))
    page.heading("Sinks")
    page.say("Of `CREATE SINK name FROM view INTO kind`: [sinks](../sinks.md).")
    for name, sink in SINK_KINDS.items():
        page.heading(f"Sink: {name.upper()}", 3)
        page.described(f"sink {name}", f"Guarantee: {guarantee_of(name)}.{_extra(sink.extra)}")
        page.table(with_alter, option_rows(sink.options, alter=True))
    page.heading("Alerts")
    page.say("Of `NOTIFY kind`: [alerts](../alerts.md).")
    for name, options in connectors.NOTIFICATIONS.items():
        page.heading(f"Notification: {name.upper()}", 3)
        page.table(with_alter, option_rows(options, alter=True))
    page.heading("Queues")
    page.say(
        "Of `ws.queue(name, topic=...)` as keywords, and of `headwater queue make`: [queues](../queues.md)."
    )
    page.table(without, option_rows(QUEUE_OPTIONS, alter=False))
    page.say("Of `queue.work(handler, ...)`, as keywords.")
    page.table(without, field_rows(WorkOptions))
    page.say("Of `ws.post(queue, url, ...)`, as keywords.")
    page.table(without, field_rows(PostOptions))
    page.heading("Cursors and groups")
    page.say("Of `topic.cursor(name, ...)`.")
    page.table(without, option_rows(CURSOR_OPTIONS, alter=False))
    page.say("Of `cursor.read(...)`, and of `member.read(...)` of a group.")
    page.table(without, option_rows(CURSOR_READ_OPTIONS, alter=False))
    page.say("Of `topic.group(name, ...)`.")
    page.table(without, field_rows(MemberOptions))
    page.heading("Spark data source")
    page.say(
        'Of `format("headwater")`, as `.option(name, value)`; names ignore case: [topics and views in Spark](../spark.md).'
    )
    for title, options in (
        ("Reading a topic", spark.READ_OPTIONS),
        ("Reading a view", spark.VIEW_OPTIONS),
        ("Writing", spark.WRITE_OPTIONS),
    ):
        page.heading(title, 3)
        page.table(without, option_rows(options, alter=False))
    return page


def _extra(extra: str | None) -> str:
    return "" if extra is None else f" It needs `headwater[{extra}]`."


# --- declarations in Python --------------------------------------------------------------------------------------------


@cache
def module_tree(module: ModuleType) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(inspect.getsource(module))


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a dataclass."""
    module = sys.modules[kind.__module__]
    (node,) = (n for n in module_tree(module).body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)
    found: dict[str, str] = {}
    for statement, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            text = str(after.value.value) if is_text else ""  # type: ignore[attr-defined]
            found[statement.target.id] = " ".join(text.split())
    return found


def field_rows(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield the fields of a dataclass, with type, default and docstring."""
    docs = field_docs(kind)
    for field in dataclasses.fields(kind):
        if not field.name.startswith("_"):
            yield (
                code(field.name),
                code(str(field.type)),
                python_value(field.default),
                docs.get(field.name, ""),
            )


def python_value(value: Any) -> str:
    """Return a default as code; sizes as products."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 10 and value % (1 << 10) == 0:
        power = next(p for p in (30, 20, 10) if value % (1 << p) == 0)
        return code(f"{value >> power} << {power}")
    return code(repr(value))


# --- settings ----------------------------------------------------------------------------------------------------------


def settings_page() -> Page:
    """Return the page of settings."""
    from headwater.core.settings import ENVIRONMENT, LogSettings
    from headwater.web.server_settings import ServerSettings

    page = Page(
        "Settings",
        "Variables of the environment, settings of the log and settings of the HTTP server. There is no configuration file. What a "
        "workspace keeps is in the options of [topics and views](options.md); [tuning](../tuning.md) says what to change when.",
    )
    page.heading("Environment")
    page.say("Those of OpenTelemetry are in [metrics](../metrics.md#ticks-as-spans).")
    rows = ((code(v.name), variable_default(v.default), v.meaning) for v in ENVIRONMENT)
    page.table(("variable", "without it", "meaning"), rows)
    page.heading("The log")
    page.say(
        "Fields of `headwater.core.settings.LogSettings`, for `hw.open(path, settings=LogSettings(...))`: they are those of the process, "
        "and are not stored. Sizes are in bytes, `_ms` is milliseconds."
    )
    page.table(("setting", "type", "default", "meaning"), field_rows(LogSettings))
    page.heading("The HTTP server")
    page.say(
        "Fields of `headwater.web.server_settings.ServerSettings`. `headwater serve` has options for those that are meant to be changed: "
        "[commands](commands.md#headwater-serve). `_s` is seconds."
    )
    page.table(("setting", "type", "default", "meaning"), field_rows(ServerSettings))
    return page


def variable_default(text: str) -> str:
    """Return what applies without a variable: a value as code, a phrase as it is."""
    return code(text) if re.fullmatch(r"[a-z]+|\d+", text) and text != "none" else text


# --- metrics -----------------------------------------------------------------------------------------------------------

_SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Health": ("healthy", "component", "info"),
    "The log": ("topic", "cursor", "disk"),
    "Ticks and views": ("engine", "tick", "ticks", "state", "view"),
    "Rejected rows": ("dead", "rejected"),
    "Sources and sinks": ("source", "sink"),
    "Queues": ("queue",),
}
"""Sections of metrics, by the word after `headwater_`."""


@cache
def metric_families() -> tuple[Any, ...]:
    """Return every family of metrics, without samples."""
    import headwater
    from headwater.testing import inspect_workspace

    with headwater.open("memory:") as ws:
        return tuple(inspect_workspace(ws).metric_families())


def metrics_page() -> Page:
    """Return the page of metrics."""
    from headwater.metrics import LABELS

    page = Page(
        "Metrics",
        "Every metric of `headwater metrics`, `ws.metrics()` and `GET /metrics`. [Metrics](../metrics.md) says where they come from, and "
        "how ticks become spans. A gauge is a value now; a counter rises, and its name ends in `_total`; a histogram also has `_bucket`, "
        "`_count` and `_sum`.",
    )
    left = {family.name: family for family in metric_families()}
    for title, words in _SECTIONS.items():
        page.heading(title)
        rows = []
        for name in list(left):
            if name.split("_")[1] in words:
                family = left.pop(name)
                labels = ", ".join(map(code, family._labelnames))
                shown = name + ("_total" if family.type == "counter" else "")
                rows.append((code(shown), family.type, labels, prose(family.documentation)))
        page.table(("metric", "type", "labels", "meaning"), rows)
    assert not left, f"no section for {sorted(left)}"
    page.heading("Labels")
    page.table(("label", "meaning"), ((code(label), meaning) for label, meaning in sorted(LABELS.items())))
    return page


# --- HTTP --------------------------------------------------------------------------------------------------------------


def scope_of(method: str, path: str) -> str:
    """Return the token scope that a route needs, once the workspace has tokens."""
    from headwater.web.access_control import HOOKS, OPEN_PATHS, needed_scope
    from headwater.web.console.console_files import open_paths

    if path.startswith(HOOKS):
        return "none: deliveries are signed"
    if path in OPEN_PATHS or path in open_paths() or path == "/console/{file}":
        return "none"
    return code(needed_scope({"method": method, "path": path}))


@cache
def problem_statuses() -> Mapping[str, tuple[tuple[int, ...], str]]:
    """Return the statuses of every problem type, and its meaning: of errors, the page of error codes has it."""
    from headwater.core import errors
    from headwater.web.problem_types import SERVER_PROBLEMS
    from headwater.web.problems import _STATUSES

    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.HeadwaterError):
            status = next((s for base, s in _STATUSES if issubclass(kind, base)), None)
            if issubclass(kind, errors.ViewUnavailableError):
                found[kind.code] = (404, 503), ""
            elif status is not None:
                found[kind.code] = (status,), ""
            elif (kind.retryable or issubclass(kind, errors.ClosedError)) and not issubclass(
                kind, errors.StorageError | errors.CorruptionError
            ):
                found[kind.code] = (503,), ""
    for name, (statuses, meaning) in SERVER_PROBLEMS.items():
        found[name] = statuses, meaning
    causes = error_causes()
    return {
        name: (statuses, meaning or causes.get(name, ""))
        for name, (statuses, meaning) in sorted(found.items())
    }


@cache
def error_causes() -> Mapping[str, str]:
    """Return the cause of each error code, as docs/error-codes.md has it."""
    page = (ROOT / "docs" / "error-codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| `\w+` \| (.+?) \| .+ \|$", page, re.MULTILINE)
    return {name: cause[0].upper() + cause[1:] + "." for name, cause in rows}


def http_page() -> Page:
    """Return the page of HTTP routes."""
    from headwater.web.app import ROUTES
    from headwater.web.console.console_api import ROUTES as CONSOLE
    from headwater.web.problem_types import EVERYWHERE, ROUTE_PROBLEMS
    from headwater.web.routes.openapi import PATHS

    page = Page(
        "HTTP routes",
        "Every route of `headwater serve`, with its parameters, the token scope that it needs, its answers and the problem types that it "
        "can answer. [Over HTTP](../http.md) explains them with examples; the server has the same as `/docs` and `/openapi.json`. A "
        "problem is a JSON document whose `type` is `urn:headwater:problem:<type>`.",
    )
    statuses = problem_statuses()
    rest = []
    for method, path, endpoint in ROUTES:
        said = PATHS.get(path, {}).get(method.lower())
        if said is None:
            rest.append((method, path, endpoint))
            continue
        page.heading(code(f"{method} {path}"))
        about = said["summary"] + "."
        page.described(f"{method} {path}", f"{about} {said.get('description', '')}".strip())
        page.say(f"Token scope: {scope_of(method, path)}.")
        if parameters := said.get("parameters"):
            rows = (
                (code(p["name"]), p["in"], p["schema"]["type"], prose(p["description"])) for p in parameters
            )
            page.table(("parameter", "in", "type", "meaning"), rows)
        if body := said.get("requestBody"):
            page.say(f"Body: {', '.join(map(code, body['content']))}.")
        answers = []
        for status, answer in said["responses"].items():
            if "$ref" not in answer:
                content = ", ".join(map(code, answer.get("content", ())))
                answers.append((status, content, sentence(answer["description"])))
        page.table(("answer", "content", "meaning"), answers)
        kinds = sorted(ROUTE_PROBLEMS[method, path])
        if kinds:
            shown = (f"{code(kind)} ({', '.join(map(str, statuses[kind][0]))})" for kind in kinds)
            page.say(f"Problems, besides those of every route: {', '.join(shown)}.")
    page.heading("Other routes")
    page.say("Routes below `/console/api` are the console's own, and change with it.")
    rows = []
    for method, path, endpoint in (*rest, *CONSOLE):
        rows.append((code(f"{method} {path}"), scope_of(method, path), endpoint_description(path, endpoint)))
    page.table(("route", "token scope", "meaning"), rows)
    page.heading("Problems of every route")
    page.say(", ".join(map(code, EVERYWHERE)) + ".")
    page.heading("Problem types")
    page.say("Types that are [error codes](../error-codes.md) have the same cause there.")
    rows = [(code(name), ", ".join(map(str, s)), meaning) for name, (s, meaning) in statuses.items()]
    page.table(("type", "status", "meaning"), rows)
    return page


def endpoint_description(path: str, endpoint: Callable[..., Any]) -> str:
    """Return what a route outside of the OpenAPI document does: the docstring of its function, without the route."""
    if path.startswith("/console/api/") and not endpoint.__doc__:
        return "Data of the console."
    text = unwrapped(endpoint.__doc__ or "")[0] if endpoint.__doc__ else ""
    text = re.sub(r"^(GET|POST)( /\S*)?: ", "", text)
    return sentence(text.replace("return ", "", 1) if text.startswith("return ") else text)


def sentence(text: str) -> str:
    """Return text that begins with a capital and ends with a full stop."""
    if not text:
        return ""
    text = text if text[0] in "`_" or not text[0].islower() else text[0].upper() + text[1:]
    return text if text.endswith((".", "?")) else f"{text}."


# --- the command line --------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its path, groups before their commands."""
    from headwater.cli.program import cli

    def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                assert below is not None
                yield from walk(below, f"{path} {name}")

    return walk(cli, "headwater")


def parameter_type(parameter: click.Parameter) -> str:
    """Return the type of a parameter of a command."""
    kind = parameter.type
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return "flag"
    if isinstance(kind, click.Choice):
        return ", ".join(code(str(choice)) for choice in kind.choices)
    words = {
        "integer range": "whole number",
        "integer": "whole number",
        "float range": "number",
        "float": "number",
    }
    name = words.get(kind.name, kind.name)
    if isinstance(kind, click.IntRange | click.FloatRange):
        low = f"from {kind.min:g}" if kind.min is not None else ""
        high = f"to {kind.max:g}" if kind.max is not None else ""
        name = " ".join(filter(None, (name, low, high)))
    return name + (", several" if parameter.multiple or parameter.nargs == -1 else "")


def parameter_default(parameter: click.Parameter) -> str:
    """Return the default of an option of a command; empty for those whose help says it."""
    value = parameter.to_info_dict().get("default")
    if value is None or value is False or value == () or "UNSET" in repr(value) or value == "":
        return ""
    return code(f"{value:g}" if isinstance(value, float) else str(value))


def commands_page() -> Page:
    """Return the page of commands."""
    page = Page(
        "Commands",
        "Every command of `headwater`, with its options: what `headwater COMMAND --help` prints. [The command line](../command-line.md) "
        "describes the prompt, the log file and exit statuses. Keys of `--json` are in [compatibility](../compatibility.md#keys-of---json).",
    )
    for path, command in commands():
        page.heading(path)
        context = click.Context(command, info_name=path)
        page.code(f"{path} {' '.join(command.collect_usage_pieces(context))}", "text")
        text, *more = unwrapped(command.help or "")
        page.described(path, prose(text))
        for paragraph in more:
            page.say(prose(" ".join(paragraph.split())))
        rows = []
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                names = ", ".join(code(name) for name in (*parameter.opts, *parameter.secondary_opts))
                default = "required" if parameter.required else parameter_default(parameter)
                rows.append((names, parameter_type(parameter), default, prose(parameter.help or "")))
        if rows:
            page.table(("option", "type", "default", "meaning"), rows)
    return page


# --- columns and topics ------------------------------------------------------------------------------------------------


def columns_page() -> Page:
    """Return the page of metadata columns and system topics."""
    from headwater.catalog.system_relations import (
        DERIVED_TOPICS,
        DESCRIBED_COLUMNS,
        OPS,
        WORKSPACE_TOPICS,
    )

    page = Page(
        "Columns and topics of the system",
        "Columns that relations have besides those that users declare, and topics that Headwater creates. Metadata columns are selected by "
        "name, and are no part of `*`. A name in angle brackets is yours.",
    )
    page.heading("Metadata columns")
    rows = ((code(c.name), c.type, c.on, c.meaning) for c in DESCRIBED_COLUMNS)
    page.table(("column", "type", "of", "meaning"), rows)
    page.heading("Values of _op")
    page.table(("value", "meaning"), ((code(op), meaning) for op, meaning in OPS.items()))
    for title, topics in (("Derived topics", DERIVED_TOPICS), ("Topics of the workspace", WORKSPACE_TOPICS)):
        page.heading(title)
        for topic in topics:
            page.heading(code(topic.name), 3)
            page.described(topic.name, topic.meaning)
            page.table(
                ("column", "meaning"), ((code(name), meaning) for name, meaning in topic.columns.items())
            )
    return page


# --- Python ------------------------------------------------------------------------------------------------------------

_PYTHON = (
    ("headwater.workspace", "Workspace", "`hw.open(path)` returns it."),
    ("headwater.log.topic", "Topic", "`ws.topic(name)` returns it."),
    ("headwater.log.reader", "TopicReader", "`topic.read()` returns it."),
    ("headwater.log.cursor", "Cursor", "`topic.cursor(name)` returns it."),
    ("headwater.log.group", "GroupMember", "`topic.group(name)` returns it."),
    ("headwater.log.transaction", "Transaction", "`ws.transaction()` returns it."),
    ("headwater.core.positions", "Receipt", "Appends return it."),
    ("headwater.views.view_handle", "View", "`ws.view(name)` returns it."),
    ("headwater.views.runner", "Runner", "`ws.start()` returns it."),
    ("headwater.views.runner", "RunReport", "`ws.run()` and `runner.stop()` return it."),
    ("headwater.workspace", "Verification", "`ws.verify()` returns it."),
    ("headwater.serving.subscribe", "Subscription", "`ws.subscribe(query)` returns it."),
    ("headwater.serving.subscribe", "Change", "A subscription yields it."),
    ("headwater.views.standing_queries", "StandingQueries", "`ws.standing(name)` returns it."),
    ("headwater.connectors.handles", "SourceHandle", "`ws.source(name)` returns it."),
    ("headwater.connectors.handles", "SinkHandle", "`ws.sink(name)` returns it."),
    ("headwater.sources.python_source", "Source", "`hw.Source`, the base of sources of your own."),
    ("headwater.connectors.dead_letters.dead_letters", "DeadLetters", "`ws.dead()` returns it."),
    ("headwater.queues.queue", "Queue", "`ws.queue(name)` returns it."),
    ("headwater.queues.message", "Message", "`queue.receive()` returns them."),
    ("headwater.queues.queue_worker", "Worker", "`queue.work(handler)` returns it."),
    ("headwater.events.aggregate_store", "Store", "`ws.store(aggregate)` returns it."),
    ("headwater.events.aggregates", "Aggregate", "`hw.Aggregate`, the definition of an aggregate."),
    ("headwater.deletion", "Deletion", "`ws.forget` and `ws.excise` return it."),
)
"""Classes whose public members the page of Python lists, and where a program gets them."""


_INTERNAL: Mapping[str, frozenset[str]] = {
    "Cursor": frozenset({"pending_move", "committed", "refused"}),
    "GroupMember": frozenset({"pending_move", "committed", "refused"}),
    "Message": frozenset({"note", "place", "lease", "queue_name"}),
    "RunReport": frozenset({"and_then"}),
    "Worker": frozenset({"stop_soon", "end"}),
}
"""Public members that other modules of the package use, and programs do not."""


def python_classes() -> Iterator[tuple[str, type, str]]:
    """Yield the classes of the Python page."""
    from importlib import import_module

    for module, name, origin in _PYTHON:
        yield name, getattr(import_module(module), name), origin


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, those of its bases in this package too, in the order of the code."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("headwater"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            if isinstance(member, property) or inspect.isfunction(member) or isinstance(member, classmethod):
                seen.add(name)
                yield name, member


def signature(name: str, member: Any) -> str:
    """Return how a member is written: with its parameters, unless it is a property."""
    if isinstance(member, property):
        return name
    function = inspect.unwrap(getattr(member, "__func__", member))
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    shown = [p for p in parameters(node.args) if p not in ("self", "cls")]
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{name}({', '.join(shown)}){returns}"
    if len(line) <= 120:
        return line
    lines = ",\n    ".join(shown)
    return f"{name}(\n    {lines},\n){returns}"


def parameters(arguments: ast.arguments) -> Iterator[str]:
    """Yield parameters as they are written in a definition."""

    def shown(argument: ast.arg, default: ast.expr | None) -> str:
        text = (
            argument.arg
            if argument.annotation is None
            else f"{argument.arg}: {ast.unparse(argument.annotation)}"
        )
        between = " = " if argument.annotation is not None else "="
        return text if default is None else f"{text}{between}{ast.unparse(default)}"

    plain = [*arguments.posonlyargs, *arguments.args]
    padded = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    yield from (shown(argument, default) for argument, default in zip(plain, padded, strict=True))
    if arguments.vararg is not None:
        yield f"*{shown(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield shown(argument, default)
    if arguments.kwarg is not None:
        yield f"**{shown(arguments.kwarg, None)}"


def member_doc(member: Any) -> str:
    """Return the docstring of a method or property."""
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return (function.__doc__ if function is not None else None) or ""


def python_page() -> Page:
    """Return the page of classes and methods."""
    from headwater.workspace import open as open_workspace

    page = Page(
        "Python",
        "The classes that programs use, with their public methods. `import headwater as hw` is assumed. Exceptions are in [error "
        "codes](../error-codes.md), options that are given as keywords in [options](options.md), event sourcing in [events](../events.md).",
    )
    page.heading("hw.open")
    page.code(signature("open", open_workspace), "text")
    _paragraphs(page, "open", open_workspace.__doc__ or "")
    for name, kind, origin in python_classes():
        page.heading(name)
        page.say(origin)
        _paragraphs(page, name, kind.__doc__ or "")
        if dataclasses.is_dataclass(kind) and (rows := list(described_fields(kind))):
            page.table(("field", "type", "meaning"), rows)
        for member_name, member in members(kind):
            if member_name in _INTERNAL.get(name, ()):
                continue
            page.heading(f"{name}.{member_name}", 3)
            page.code(signature(member_name, member), "text")
            _paragraphs(page, f"{name}.{member_name}", member_doc(member))
    return page


def described_fields(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the fields of a dataclass that have a docstring."""
    for name, type_, _, meaning in field_rows(kind):
        if meaning:
            yield name, type_, prose(meaning)


def _paragraphs(page: Page, name: str, text: str) -> None:
    first, *more = unwrapped(text) if text else [""]
    page.described(name, prose(first))
    for paragraph in more:
        if paragraph.startswith(" "):
            page.code(textwrap.dedent(paragraph).strip(), "text")
        else:
            page.say(prose(paragraph))


# --- all of it ---------------------------------------------------------------------------------------------------------

PAGES: Mapping[str, Callable[[], Page]] = {
    "sql.md": sql_page,
    "options.md": options_page,
    "python.md": python_page,
    "commands.md": commands_page,
    "http.md": http_page,
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "columns.md": columns_page,
}
"""The pages, by their names in docs/reference."""


def main() -> int:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make().text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
