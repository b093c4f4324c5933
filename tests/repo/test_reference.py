"""docs/reference is what scripts/reference.py makes of the code, and leaves nothing out that the code has."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, get_args

import click
import pytest

from headwater.catalog import (
    connectors,
    definitions,
    rules,
    statement_options,
    time_options,
    view_definitions,
)
from headwater.catalog.connector_kinds import MODES, SINK_KINDS, SOURCE_KINDS
from headwater.catalog.options import REQUIRED, Option
from headwater.catalog.system_relations import (
    DERIVED_TOPICS,
    DESCRIBED_COLUMNS,
    OPS,
    WORKSPACE_TOPICS,
)
from headwater.core.settings import ENVIRONMENT, Durability
from headwater.core.types import format_type
from headwater.web import problem_types
from headwater.web.app import ROUTES
from headwater.web.routes.openapi import PATHS
from tests.repo import public_names, stored_names
from tests.repo.code_values import calls, text_of
from tests.repo.compatibility_page import TABLES
from tests.repo.tree import ROOT


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference"] = module
    spec.loader.exec_module(module)
    return module


reference = _script()
assert {public_names.__name__, stored_names.__name__} <= set(sys.modules), "they fill TABLES"


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_page_is_what_the_code_says(name: str) -> None:
    page = reference.PAGES[name]()
    committed = (reference.FOLDER / name).read_text(encoding="utf-8")
    assert page.text() == committed, "`make reference` writes it again"
    assert [entry.name for entry in page.entries if not entry.description.strip()] == [], (
        "describe it where it is declared"
    )


def test_the_index_lists_every_page() -> None:
    index = (reference.FOLDER / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\]\(([a-z-]+\.md)\)", index))
    there = {path.name for path in reference.FOLDER.glob("*.md")}
    assert listed == set(reference.PAGES) == there - {"README.md"}


@pytest.mark.parametrize("kind", reference.statement_kinds(), ids=lambda kind: kind.__name__)
def test_a_statement_has_a_syntax_and_an_example_of_its_own(kind: type) -> None:
    from headwater.sql.parser import parse

    text, syntax, example = reference.statement_parts(kind)
    assert text.endswith(".")
    assert syntax
    (parsed,) = parse(example)
    assert type(parsed) is kind


def every_option() -> Mapping[str, tuple[Option, ...]]:
    from headwater.queues.queue_definition import QUEUE_OPTIONS
    from headwater.spark_datasource import options as spark

    return {
        "topic": statement_options.TOPIC,
        "view": statement_options.VIEW,
        "standing query": statement_options.STANDING_QUERY,
        "queue": QUEUE_OPTIONS,
        "reading a topic in Spark": spark.READ_OPTIONS,
        "reading a view in Spark": spark.VIEW_OPTIONS,
        "writing in Spark": spark.WRITE_OPTIONS,
        **{f"source {kind}": row.options for kind, row in SOURCE_KINDS.items()},
        **{f"sink {kind}": row.options for kind, row in SINK_KINDS.items()},
        **{f"notice {kind}": options for kind, options in connectors.NOTIFICATIONS.items()},
    }


def test_options_have_a_type_a_default_and_a_sentence() -> None:
    wrong = [
        f"{of}: {option.name}"
        for of, options in every_option().items()
        for option in options
        if not option.default
        or not (option.type.startswith("'") or option.type in reference.TYPES)
        or not re.fullmatch(r"(?s)[A-Z].*\.", option.meaning)
    ]
    assert wrong == []


def test_choices_of_options_are_those_of_the_code() -> None:
    from headwater.connectors.alerts import notify
    from headwater.core.webhook_signatures import SCHEMES
    from headwater.sources.files import options as files
    from headwater.sources.postgres.server import options as postgres

    assert notify.TIMEOUT == "10 seconds"
    choices: dict[tuple[str, str], Any] = {
        ("topic", "cleanup"): definitions.Cleanup,
        ("topic", "durability"): Durability,
        ("topic", "watermark"): time_options.WatermarkBy,
        ("topic", "schema_changes"): definitions.SchemaChanges,
        ("topic", "when_behind"): rules.WhenBehind,
        ("view", "late"): view_definitions.Late,
        ("view", "on_error"): view_definitions.OnError,
        ("view", "state"): view_definitions.StateBound,
        ("source postgres", "snapshot"): postgres.FirstSnapshot,
        ("source postgres", "over_wal"): postgres.OverBudget,
        ("source postgres", "on_gap"): postgres.OnGap,
        ("source files", "format"): files.Format,
        ("source files", "extra"): files.Extra,
        ("source files", "on_error"): files.OnError,
        ("source webhook", "scheme"): SCHEMES,
        **{
            (f"sink {kind}", "mode"): row.modes
            for kind, row in SINK_KINDS.items()
            if len(row.modes) > 1 and kind != "postgres"
        },
    }
    declared = {(of, option.name): option for of, options in every_option().items() for option in options}
    for place, wanted in choices.items():
        known = tuple(wanted) if not hasattr(wanted, "__args__") else get_args(wanted)
        shown = tuple(choice.strip().strip("'") for choice in declared[place].type.split("|"))
        assert set(shown) == set(known), place
    assert MODES == ("upsert", "append", "changelog")


def test_defaults_of_options_are_those_of_the_code() -> None:
    from headwater.core.clock import format_span
    from headwater.queues.queue_definition import DELIVERIES, LEASE_US
    from headwater.sinks.base.circuit_breaker import CircuitOptions
    from headwater.sources import webhook_source
    from headwater.sources.files.options import FilesOptions
    from headwater.sources.postgres.server.options import PostgresOptions
    from headwater.sources.statsd import statsd_source
    from headwater.sql.standing_statements import StandingDefinition

    found: dict[tuple[str, str], object] = {
        ("queue", "lease"): format_span(LEASE_US),
        ("queue", "deliveries"): DELIVERIES,
        ("topic", "tombstone_retention"): format_span(definitions.TOMBSTONE_RETENTION_US),
        ("topic", "occurred"): time_options.OCCURRED,
        ("topic", "sent"): time_options.SENT,
        ("source files", "settle"): format_span(FilesOptions.settle_us),
        ("source webhook", "tolerance"): webhook_source.TOLERANCE,
        ("source webhook", "max_body"): webhook_source.BODY_MAX,
        ("source statsd", "host"): statsd_source.HOST,
        ("source statsd", "every"): statsd_source.EVERY,
        ("source statsd", "rows"): statsd_source.ROWS,
        ("source statsd", "receive_buffer"): statsd_source.RECEIVE_BUFFER,
        ("source statsd", "lateness"): statsd_source.LATENESS,
        ("sink webhook", "open_after"): CircuitOptions.opens_after,
        ("sink webhook", "open_for"): f"{CircuitOptions.open_s:g} seconds",
    }
    for of, kind, names in (
        ("topic", definitions.TopicDefinition, "partitions cleanup watermark schema_changes when_behind"),
        ("view", view_definitions.ViewOptions, "late on_error state"),
        ("standing query", StandingDefinition, "accents operator backfill allow_scans"),
        (
            "source postgres",
            PostgresOptions,
            "snapshot failover over_wal on_gap outbox_prefix chunk_rows",
        ),
        ("source files", FilesOptions, "header multiline extra on_error"),
    ):
        found |= {(of, name): getattr(kind, name) for name in names.split()}
    declared = {(of, option.name): option for of, options in every_option().items() for option in options}
    for place, value in found.items():
        shown = str(value).lower() if isinstance(value, bool) else str(value)
        assert declared[place].default.strip("'") == shown, place


def test_required_options_are_those_that_a_declaration_is_refused_without() -> None:
    for kind, row in SOURCE_KINDS.items():
        assert [option.name for option in row.options if option.default == REQUIRED] == [
            row.options[0].name
        ], kind
    for kind, sink in SINK_KINDS.items():
        needed = [option.name for option in sink.options if option.default == REQUIRED]
        first = sink.options[0].name
        assert needed == ([first] if first in connectors._NEEDED else []), kind


def test_options_of_cursors_and_groups_are_their_parameters() -> None:
    from headwater.log.cursor import CURSOR_OPTIONS, CURSOR_READ_OPTIONS, Cursor
    from headwater.log.group import GroupMember, MemberOptions
    from headwater.log.topic import Topic

    def parameters(function: Any) -> set[str]:
        return set(inspect.signature(function).parameters) - {"self", "name"}

    assert {option.name for option in CURSOR_OPTIONS} == parameters(Topic.cursor)
    assert {option.name for option in CURSOR_READ_OPTIONS} == parameters(Cursor.read)
    assert parameters(Cursor.read) == parameters(GroupMember.read)
    assert {field.name for field in dataclasses.fields(MemberOptions)} == parameters(Topic.group)


def test_every_variable_of_the_environment_is_declared() -> None:
    assert {variable.name for variable in ENVIRONMENT} == set(TABLES["Environment variables"]())


def test_every_label_of_a_metric_has_a_meaning() -> None:
    from headwater.metrics import LABELS

    assert {label for family in reference.metric_families() for label in family._labelnames} == set(LABELS)


def test_problem_types_of_the_server_are_those_that_it_raises() -> None:
    raised: dict[str, set[int]] = {}
    for _, call in calls("Problem", "headwater.web"):
        if len(call.args) < 2 or (kind := text_of(call.args[1])) is None:
            continue
        statuses = {node.value for node in ast.walk(call.args[0]) if isinstance(node, ast.Constant)}
        raised.setdefault(kind, set()).update(status for status in statuses if isinstance(status, int))
    for what in {text_of(call.args[0]) for _, call in calls("_too_slow", "headwater.web") if call.args} | {
        "body"
    }:
        raised[f"{what}-too-slow"] = {408}
    declared = {kind: set(statuses) for kind, (statuses, _) in problem_types.SERVER_PROBLEMS.items()}
    assert set(declared) == set(raised)
    for kind, statuses in raised.items():
        assert statuses <= declared[kind], kind


def test_routes_name_the_problems_that_they_can_answer() -> None:
    """The statuses of a route in the OpenAPI document are those of its problem types."""
    statuses = reference.problem_statuses()
    described = {(method.upper(), path) for path, methods in PATHS.items() for method in methods}
    assert described == set(problem_types.ROUTE_PROBLEMS)
    assert described <= {(method, path) for method, path, _ in ROUTES}
    assert set(problem_types.EVERYWHERE) <= set(statuses)
    common = {status for kind in problem_types.EVERYWHERE for status in statuses[kind][0]}
    for (method, path), kinds in problem_types.ROUTE_PROBLEMS.items():
        listed = {int(status) for status in PATHS[path][method.lower()]["responses"]}
        own = {status for kind in kinds for status in statuses[kind][0]}
        assert not set(kinds) & set(problem_types.EVERYWHERE), path
        assert own <= listed, f"{method} {path}: {sorted(own - listed)} are not in the OpenAPI document"
        assert listed - own - common <= {200, 503}, (
            f"{method} {path}: no problem type has {sorted(listed - own)}"
        )


def test_the_arguments_of_a_command_are_in_its_help() -> None:
    """Unless the argument is shown under a name of its own, such as TOKEN, that says what it is."""
    wrong = []
    for path, command in reference.commands():
        for parameter in command.params:
            if isinstance(parameter, click.Argument) and parameter.metavar is None:
                name = (parameter.name or "").upper()
                if not re.search(rf"\b{name}", command.help or ""):
                    wrong.append(f"{path} {name}")
    assert wrong == []


def test_metadata_columns_have_the_types_of_the_code() -> None:
    from headwater.plan.relations.metadata_columns import READABLE, VERSIONED
    from headwater.sinks.base.target import TICK, WEIGHT

    known = TABLES["Metadata columns"]()
    assert {column.name for column in DESCRIBED_COLUMNS} == {
        name for names in known.values() for name in names
    }  # type: ignore[union-attr]
    declared = {(column.name, column.type) for column in DESCRIBED_COLUMNS}
    for field in (*READABLE, *definitions.CAPTURED, *VERSIONED, *time_options.STORED, WEIGHT, TICK):
        assert (field.name, format_type(field.type)) in declared
    assert set(OPS) == set(TABLES["Texts of `_op`"]())


def test_system_topics_have_the_columns_of_the_code() -> None:
    declared = {topic.name: tuple(topic.columns) for topic in (*DERIVED_TOPICS, *WORKSPACE_TOPICS)}
    assert declared == TABLES["System topics"]()
