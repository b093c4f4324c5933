"""The names that workspaces and targets of sinks store, table by table of docs/compatibility.md, as the code has them."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import struct
from collections.abc import Collection
from functools import cache
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import orjson
import pyarrow as pa

from headwater.catalog import connectors, definitions, dropped_columns, rules, time_options, view_definitions
from headwater.catalog.definitions import define_topic
from headwater.catalog.view_definitions import ViewDefinition, ViewOptions
from headwater.core import settings
from headwater.engine.metrics import tick_totals
from headwater.log.embedded import append as log_append
from headwater.log.embedded.commit import Core
from headwater.log.embedded.journal import record_kinds
from headwater.log.embedded.journal.journal_state import JournalState, PartitionState, Segment
from headwater.log.protocol import CursorInfo, GroupInfo
from headwater.operators.graph_text import FORMS
from headwater.state import manifest as manifests
from headwater.state.manifest import Manifest, ViewState
from tests.repo.code_values import (
    argument,
    calls,
    function_tree,
    keys_asked,
    keys_beside,
    keys_put,
    keys_read,
    keys_written,
    modules,
    text_of,
    texts,
)
from tests.repo.compatibility_page import GOLDEN, Rows, table

EVERY_RECORD = frozenset(("k", "seq", "at", "sync", *keys_written(Core.commit)))


@cache
def journal(folder: Path) -> tuple[dict[str, Any], ...]:
    """The records of a workspace, read as docs/formats/journal.md says."""
    found = []
    for path in sorted((folder / "journal").glob("*.log")):
        data, at = path.read_bytes(), 0
        while at + 24 <= len(data):
            magic, length, _, text, _ = struct.unpack_from("<4sIQII", data, at)
            if magic != b"HWJ1":
                break
            found.append(json.loads(data[at + 24 : at + 24 + text]))
            at += (24 + length + 7) // 8 * 8
    return tuple(found)


def golden_workspaces() -> list[Path]:
    """Workspaces that earlier versions wrote."""
    return sorted(GOLDEN.glob("*/workspace"))


@table("Journal records")
def _journal_records() -> Rows:
    found: dict[str, set[str]] = {}
    for _, tree in modules("headwater.log.embedded"):
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            dicts = [node for node in ast.walk(function) if isinstance(node, ast.Dict)]
            keys = [[text_of(key) if key is not None else None for key in node.keys] for node in dicts]
            for node, own in zip(dicts, keys, strict=True):
                if "k" in own:
                    kind = text_of(node.values[own.index("k")])
                    assert kind is not None
                    found.setdefault(kind, set()).update(filter(None, own))
    for kind, own in found.items():
        own |= keys_read(record_kinds.KINDS[kind], "record")
    found["append"] |= keys_read(record_kinds._remember, "record") | keys_written(log_append._producer_fields)
    found["append"] |= keys_written(log_append.Appender.punctuate, into="record")
    return {"every record": EVERY_RECORD, **{kind: own - EVERY_RECORD for kind, own in found.items()}}


@table("Parts, moves and notes of a record")
def _parts() -> Rows:
    part = keys_read(record_kinds._add_part, "part")
    said = keys_read(record_kinds._say, "said")
    for _, tree in modules("headwater.log.embedded"):
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            part |= keys_put(function, "part")
            said |= keys_put(function, "said") if "what" in keys_put(function, "said") else set()
    return {"part": part, "move": keys_written(log_append.move_json), "said": said}


@table("Checkpoints of the journal")
def _checkpoint() -> Rows:
    return {
        "state": frozenset(JournalState().to_json()),
        "partition": frozenset(PartitionState().to_json()),
        "segment": tuple(field.name for field in dataclasses.fields(Segment)),
        "cursor": frozenset(field.name for field in dataclasses.fields(CursorInfo)),
        "group": frozenset(field.name for field in dataclasses.fields(GroupInfo)),
    }


@table("Definition of a topic")
def _topic_definition() -> Rows:
    return frozenset((*define_topic("t", pa.schema([("a", pa.int64())])).to_json(), *definitions._LATER))


@table("Values of a definition")
def _values() -> Rows:
    return {
        "cleanup": frozenset(get_args(definitions.Cleanup)),
        "durability": frozenset(get_args(settings.Durability)),
        "watermark": frozenset(get_args(time_options.WatermarkBy)),
        "schema_changes": frozenset(get_args(dropped_columns.SchemaChanges)),
        "when_behind": frozenset(get_args(rules.WhenBehind)),
        "late": frozenset(get_args(view_definitions.Late)),
        "on_error": frozenset(get_args(view_definitions.OnError)),
        "state": frozenset(get_args(view_definitions.StateBound)),
    }


@table("Entries of the catalog")
def _entries() -> Rows:
    from headwater.connectors.dead_letter_store.sink_letters import store_rejected_letters
    from headwater.connectors.dead_letters.dead_sinks import SinkLetterStore
    from headwater.connectors.manage.source_orders import SourceOrders
    from headwater.connectors.manage.webhooks import Hooks
    from headwater.engine.collections import shadow_builds, workload
    from headwater.engine.tick.tick_engine import Engine
    from headwater.events.reactions import ViewFeed
    from headwater.log.deletion_entries import DeletionEntry
    from headwater.queues.queue_definition import QueueDefinition
    from headwater.sinks.topic.versions import Topics
    from headwater.udf.udf_definitions import FunctionDefinition
    from headwater.web import tokens

    source = connectors.SourceDefinition("s", "python", {})
    sink = connectors.SinkDefinition("s", "python", {}, "v")
    alert = connectors.AlertDefinition("a", "topic", {}, "v", False, {}, "n > 1")
    documents: dict[str, Collection[str]] = {
        "view": keys_written(ViewDefinition.to_document),
        "past view": keys_written(workload.keep_past),
        "rebuild": keys_written(shadow_builds.declare),
        "source": set(source.to_document()),
        "sink": set(sink.to_document()),
        "alert": set(alert.to_document()),
        "queue": keys_written(QueueDefinition.to_json),
        "function": keys_written(FunctionDefinition.to_document),
        "token": keys_written(tokens.create),
        "tokens": (),
        "engine": keys_written(Engine.next_tick, into="document"),
        "deletion": {field.name for field in dataclasses.fields(DeletionEntry)} - {"name", "sequence"},
        "sink_versions": {field.name for field in dataclasses.fields(Topics)},
        "letters anew": (),
        "refused letters": keys_written(store_rejected_letters),
        "retry": keys_written(SinkLetterStore._request_retry),
        "order": keys_written(SourceOrders.put, into="order"),
        "copy": (),
        "reaction": keys_written(ViewFeed.__init__),
        "refused deliveries": keys_written(Hooks.store, into="document"),
    }
    kinds = {argument(module, call, 0) for module, call in calls("put_entry")} - {None}
    declared = {
        connectors.SOURCE,
        connectors.SINK,
        connectors.ALERT,
    }  # which `Declarations` puts under its own kind
    assert kinds | declared == set(documents), "every kind of entry that is put has a document here"
    return documents


@table("Options of a view in the catalog")
def _view_options() -> Rows:
    return frozenset(field.name for field in dataclasses.fields(ViewOptions))


@table("Producers")
def _producers() -> Rows:
    """What names of producers begin with that Headwater itself uses."""
    from headwater import deletion, execution
    from headwater.sinks.base.at_least_once import LogKeeper
    from headwater.sources.source_runner import producer_of

    log: Any = None
    prefixes = {
        "headwater.deletion": deletion._PRODUCER,
        "headwater.execution": f"{execution.COPY}:",
        "headwater.sinks.base.at_least_once": LogKeeper(log, "", of="")._name,
        "headwater.sinks.topic.target": LogKeeper(log, "", of="")._name,
        "headwater.sources.source_runner": producer_of(""),
        "headwater.connectors.dead_letter_store.sink_letters": "letters:",
        "headwater.spark_datasource.topic_writer": "spark:",
    }
    of_users = "headwater.log.append_rows"
    assert {module for module, _ in calls("Producer")} == {*prefixes, of_users}, (
        "a module that appends under a name"
    )
    for module, prefix in prefixes.items():
        below = texts(module) | texts("headwater.execution")
        assert prefix in below or prefix.rstrip(":") in below, (module, prefix)
    return frozenset(prefixes.values())


@table("Cursors")
def _cursors() -> Rows:
    from headwater.log.topic_names import VIEWS_HOLD
    from headwater.queues.queue_ddl import POSITION
    from headwater.queues.queue_definition import QueueDefinition

    queue = QueueDefinition("q", "t").cursor.removesuffix("q")
    served = texts("headwater.events.calls") & {"serve "}
    return frozenset((VIEWS_HOLD, POSITION, queue, *served))


@table("Sealed segments")
def _sealed() -> Rows:
    from headwater.log.embedded.rewrite_segments import Rewriter
    from headwater.log.embedded.segments import sealed_segments

    metadata = keys_written(sealed_segments.write_sealed)
    about = keys_written(Rewriter.rewrite, into="about") | keys_beside(sealed_segments.write_sealed, "format")
    return dict.fromkeys(metadata, about)


@table("Manifests")
def _manifests() -> Rows:
    sample = Manifest(
        1, 1, 1, 1, {}, id="a", previous="b", commit="c", views={"v": ViewState("v", 1, "live", "", "")}
    )
    plain = orjson.loads(sample.encode())
    return {
        "manifest": frozenset(plain),
        "view": frozenset(plain["views"]["v"]),
        "run": (
            "file",
            "offset",
            "length",
            "rows",
            "low",
            "high",
            "first_tick",
            "last_tick",
            "checksum",
            "bytes",
            "first",
            "shared",
        ),
    }


@table("Extra of a manifest")
def manifest_extra() -> Rows:
    from headwater.engine.deletion.rebuild_after_delete import TAKEN, taken
    from headwater.engine.deletion.retract import UNSURE

    figures = tick_totals.TickTotals(last=tick_totals.TickCost(1, 0, 0.0)).document()
    return {tick_totals.NAME: frozenset(figures), TAKEN: keys_written(taken, into="said"), UNSURE: ()}


@table("Extra of a view")
def view_extra() -> Rows:
    return frozenset(field.name for field in dataclasses.fields(manifests.CollectionRecord))


@table("Statuses")
def _statuses() -> Rows:
    from headwater import deletion
    from headwater.connectors.alerts import alert_episodes
    from headwater.connectors.dead_letter_store import letter_store
    from headwater.core import faults
    from headwater.views import dead_letter_actions

    episode = get_type_hints(alert_episodes.Episode)["state"]
    return {
        "view in a tick": frozenset(get_args(manifests.Status)),
        "dead letter": frozenset(get_args(letter_store.State)),
        "action on a dead letter": frozenset(get_args(dead_letter_actions.Action)),
        "place of a deletion": frozenset(get_args(deletion.Status)),
        "episode of an alert": frozenset(get_args(episode)),
        "fault of": frozenset(get_args(faults.FaultKind)),
    }


@table("Text of an operator graph")
def _graph_text() -> Rows:
    return {
        form.name: tuple([stored for stored, _ in form.fields] + [stored for stored, _, _ in form.later])
        for form in FORMS.values()
    }


@table("Arrangements of a view")
def _arrangements() -> Rows:
    from headwater.engine.collections.arrangements import arrangement_id
    from headwater.engine.collections.shadow_builds import SHADOW

    unit: Any = SimpleNamespace(identity="<identity>")
    slot: Any = SimpleNamespace(name="<arrangement>")
    return frozenset((f"<view>{SHADOW}", arrangement_id(unit, slot)))


def _checkpoint_sample() -> Any:
    from headwater.sinks.base.target import SinkCheckpoint

    return SinkCheckpoint(1, "h", 2, 3, b"x", False, "id")


@table("Checkpoint of a sink")
def _checkpoint_of_a_sink() -> Rows:
    return frozenset(json.loads(_checkpoint_sample().text()))


@table("What sinks keep in the workspace")
def _notes() -> Rows:
    from headwater.sinks.base.at_least_once import LogKeeper
    from headwater.sinks.base.last_delivered import LastDelivered
    from headwater.sinks.topic.target import TopicTarget

    return {
        "webhook": keys_written(LogKeeper.write) - {"tick"},
        "python": keys_written(LogKeeper.write),
        "topic": keys_written(TopicTarget.apply, into="note"),
        "<sink>.json": keys_written(LastDelivered.write),
    }


@table("What sinks keep in their targets")
def _targets() -> Rows:
    from headwater.sinks.base import folder_swap
    from headwater.sinks.base.target import TICK, WEIGHT
    from headwater.sinks.iceberg import lake_table
    from headwater.sinks.iceberg import target as lake
    from headwater.sinks.iceberg import versions as branches
    from headwater.sinks.parquet import target as parquet
    from headwater.sinks.postgres import target as postgres
    from headwater.sinks.postgres.versions import suffixed
    from headwater.sinks.redis.versions import mark_of, position_of
    from headwater.sinks.search import search_schema, versions
    from headwater.sinks.topic.versions import TopicVersions

    both = ("new", "old")
    nothing: Any = SimpleNamespace(topics=dict, entries=lambda kind: {})
    created = (
        text for text in texts("headwater.sinks.postgres") if " NOT NULL, " in text or "PRIMARY KEY, " in text
    )
    lake_defaults = {
        text.strip("/")
        for text in texts("headwater.sinks.iceberg")
        if text.strip("/") in ("headwater", "catalog.db")
    }
    columns = re.findall(r"(\w+) (?:text|bigint|numeric|bytea|boolean|timestamptz)\b", " ".join(created))
    return {
        "postgres": {postgres.POSITIONS, *columns, *(suffixed("<table>", version) for version in both)},  # type: ignore[arg-type]
        "redis": {
            position_of("<sink>", None).decode(),
            *(position_of("<sink>", version).decode() for version in both),  # type: ignore[arg-type]
            *(f"{mark_of(version).decode()}<name>" for version in both),  # type: ignore[arg-type]
        },
        "lake": {lake.CHECKPOINT, lake_table.OWNER, branches.NEW, branches.OLD, *lake_defaults},
        "parquet": {
            parquet.CHECKPOINT.decode(),
            parquet._ID.decode(),
            parquet.CONTENTS,
            parquet._CHECKPOINT_FILE,
            parquet._LOCK_FILE,
            parquet._ASIDE,
            folder_swap.MARK,
            *keys_written(parquet.ParquetTarget._apply, into="said"),
            *(folder_swap.sibling(Path("<folder>"), version).name for version in both),  # type: ignore[arg-type]
        },
        "search": {
            search_schema.KEY,
            search_schema.SOURCE,
            search_schema.SLICE,
            search_schema.NULL,
            f"{search_schema.RESERVED}n",
            f"{search_schema.RESERVED}x",
            search_schema.HEAD.replace("\0", "\\0"),
            *keys_written(search_schema.SearchLayout.head, into="plain"),
            *keys_written(search_schema.SearchLayout.document),
            versions.CURRENT,
            *(field.name for field in dataclasses.fields(versions._Current)),
            versions._FOLDER,
            versions._GONE,
            versions._LOCK,
        },
        "topic": {WEIGHT.name, TICK.name, TopicVersions("s", nothing, "<topic>", nothing, nothing)._free()},
    }


@table("What receivers are sent")
def _sent() -> Rows:
    from headwater.connectors.alerts import alert_episodes
    from headwater.connectors.manage.queue_webhooks import Poster
    from headwater.core import webhook_signatures as standard
    from headwater.sinks.base import http_post
    from headwater.sinks.webhook.target import WebhookTarget

    return {
        "header": {
            http_post.KEY_HEADER,
            http_post.SIGNATURE_HEADER,
            standard.ID_HEADER,
            standard.TIME_HEADER,
            standard.SIGNATURE_HEADER,
        },
        "webhook sink": keys_written(WebhookTarget._body),
        "queue": keys_written(Poster._body),
        "alert": set(alert_episodes.NOTICES.names),
    }


@table("Positions of sources")
def _positions() -> Rows:
    from headwater.sources.files.tracking import KnownFile, Tracker
    from headwater.sources.postgres.capture_session import CaptureSession
    from headwater.sources.postgres.gaps import Gaps
    from headwater.sources.postgres.rows.table_identity import TableIdentity
    from headwater.sources.postgres.snapshot.snapshot_rows import SnapshotRequest
    from headwater.sources.postgres.snapshot.wanted_snapshots import WantedSnapshots
    from headwater.sources.python_source import PythonSource
    from headwater.sources.statsd.statsd_source import _COUNTED

    read: set[str] = set()
    for _, tree in modules("headwater.sources.postgres"):
        read |= keys_asked(tree, "position")
    begun = list(modules("headwater.sources.postgres.capture_session"))
    first: set[str] = set()
    for _, tree in begun:
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Attribute(attr="_first")], value=ast.Dict(keys=keys)):
                    first |= {str(text_of(key)) for key in keys if key is not None}
                case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="_first"), slice=key)]):
                    first.add(str(text_of(key)))
    written = first | keys_written(CaptureSession._commit, into="position changing")
    written |= keys_written(WantedSnapshots.remembered) | keys_written(Gaps.remembered) | {"lsn", "anchor"}
    return {
        "postgres": written | read,
        "postgres facts": keys_written(TableIdentity.to_json),
        "postgres snapshots": frozenset(field.name for field in dataclasses.fields(SnapshotRequest)),
        "files": keys_written(Tracker.position),
        "files files": ("number", *(field.name for field in dataclasses.fields(KnownFile))),
        "python": keys_written(PythonSource._pair),
        "statsd": frozenset(_COUNTED),
    }


@table("Text forms")
def _text_forms() -> Rows:
    from headwater.core.positions import Receipt, Token

    token = Token(1043, "5f0c6c1b9e2d4a7b")
    receipt = Receipt({"clicks": {0: (17, 20), 1: (4, 5)}, "orders": {0: (9, 10)}}, token)
    assert Receipt.parse(str(receipt)) == receipt
    return {"receipt": (str(receipt),), "tick or commit": (str(token),)}


@table("Offsets in a checkpoint of Spark")
def _offsets() -> Rows:
    from headwater.spark_datasource.offsets import StreamOffset

    return keys_written(StreamOffset.to_json)


@table("Operations of a queue")
def _operations() -> Rows:
    from headwater.queues.queue_records import KINDS

    return frozenset(KINDS)


@table("Checkpoint of a queue")
def _queue_checkpoint() -> Rows:
    from headwater.queues import queue_checkpoint
    from headwater.queues.queue_state import Totals

    kinds = {
        str(text_of(value))
        for node in ast.walk(function_tree(queue_checkpoint._rows))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is not None and text_of(key) == "what"
    }
    return {
        "columns": tuple(queue_checkpoint.SCHEMA.names),
        "what": kinds,
        "about": keys_written(queue_checkpoint.encode, into="about"),
        "totals": frozenset(field.name for field in dataclasses.fields(Totals)),
    }


@table("System topics")
def _system_topics() -> Rows:
    from headwater import deletion
    from headwater.connectors.alerts import alert_episodes
    from headwater.connectors.dead_letter_store import sink_letters
    from headwater.engine.collections.collections import ERRORS_NAME
    from headwater.engine.row_errors import diverted_rows, late_rows
    from headwater.events import calls as calling
    from headwater.events import claims, command_log, event_schema
    from headwater.queues import queue_dead_letters, queue_definition, queue_records
    from headwater.sources.files import options as files
    from headwater.sources.postgres import outbox
    from headwater.sql import standing_statements
    from headwater.views import dead_letter_actions

    system = {
        dead_letter_actions.TOPIC: dead_letter_actions.SCHEMA.names,
        alert_episodes.TOPIC: alert_episodes.SCHEMA.names,
        claims.TOPIC: claims.SCHEMA.names,
        command_log.TOPIC: [*command_log.SCHEMA.names, command_log.SEALED.name],
        deletion.FORGOTTEN: deletion._SCHEMAS[deletion.FORGOTTEN].names,
        deletion.EXCISED: deletion._SCHEMAS[deletion.EXCISED].names,
    }
    replies = calling.REPLIES
    assert set(system) | {replies} == rules._SYSTEM_TOPICS | rules.DELETION_TOPICS, (
        "every name that is kept for the workspace"
    )
    shown: dict[str, list[str]] = {
        **system,
        f"{queue_definition.STATE_TOPICS}<queue>": queue_records.SCHEMA.names,
        f"<queue>.{rules.DEAD}": queue_dead_letters.SCHEMA.names,
        f"<sink>{sink_letters.letters_topic('')}": sink_letters.SCHEMA.names,
        "<source>_errors": [*files._ERRORS.names, "header"],
        f"<view>.{late_rows.LATE_NAME}": late_rows._REPORT_COLUMNS.names,
        f"<view>.{ERRORS_NAME}": diverted_rows.ERRORS.names,
        "<topic of an aggregate>": [*event_schema.OWN_NAMES],
        "meta": event_schema.META.names
        if hasattr(event_schema.META, "names")
        else [f.name for f in event_schema.META],
        "<topic of calls>": [field.name for field in calling.REQUEST],
        f"<topic of calls>{replies}": [field.name for field in calling.REPLY],
        "<outbox>": outbox._PLAIN.names,
        "<standing query>_queries": standing_statements.QUERIES.names,
        "<topic of alerts>": alert_episodes.NOTICES.names,
    }
    return {name: tuple(columns) for name, columns in shown.items()}


@table("Metadata columns")
def _metadata_columns() -> Rows:
    from headwater.plan.relations import metadata_columns
    from headwater.sinks.base.target import TICK, WEIGHT

    return {
        "every topic": frozenset((*rules.METADATA_COLUMNS, rules.FORGOTTEN)),
        "captured topics": frozenset(definitions.CAPTURED.names),
        "versions": frozenset(metadata_columns.VERSIONED.names),
        "changes of a view": frozenset((WEIGHT.name, TICK.name)),
        "device clocks": frozenset(time_options.STORED.names),
    }


@table("Texts of `_op`")
def _ops() -> Rows:
    from headwater.catalog.conform import OPS

    return frozenset(OPS)


@table("Files and folders of a workspace")
def files_and_folders() -> Rows:
    """Names in the folder of a workspace."""
    from headwater.cli.logs import file_of
    from headwater.connectors import supervisor
    from headwater.connectors.manage import status_board, webhooks
    from headwater.core import faults
    from headwater.engine.input import excised_records
    from headwater.log.embedded import creation
    from headwater.log.embedded.journal import clock_file, commit_ids, journal_file
    from headwater.sinks import registry
    from headwater.sources import registry as sources
    from headwater.state import base_ticks, state_files

    assert {base_ticks.FOLDER, state_files.FOLDER} <= creation._OWN_NAMES
    events = {text for text in texts("headwater.events.workspace_events") if text == "events"}
    return frozenset(
        {
            *creation._OWN_NAMES,
            creation.WORKSPACE_FILE,
            f"{journal_file.HEAD}.<n>",
            commit_ids.FOLDER,
            clock_file.FILE,
            faults.FOLDER,
            excised_records.FOLDER,
            registry.FOLDER,
            status_board.FILE,
            webhooks.FILE,
            supervisor.ALERTS_LOCK,
            file_of(Path()).parent.name,
            sources.KEYS,
            *events,
        }
    )


@table("Folder of keys")
def _keys() -> Rows:
    from headwater.privacy.key_files import FORGOTTEN, KEYS, LOCK, KeyFiles
    from headwater.privacy.master_keys import MASTER, MasterKeys

    return {
        MASTER: keys_written(MasterKeys.write),
        KEYS: (),
        FORGOTTEN: keys_beside(KeyFiles.append_line, "subject"),
        LOCK: (),
    }


@table("Environment variables")
def _environment() -> Rows:
    """Variables where they are read; `core.settings` describes them."""
    from headwater.sql.match_recognize_places import HINT

    read = texts(leave_out="headwater.core.settings")
    found = {name for text in read for name in re.findall(r"^_?HEADWATER_[A-Z_]+$", text)} - {HINT}
    return frozenset(f"{name}*" if name.endswith("_") else name for name in found)


@table("Settings that name modules")
def _module_settings() -> Rows:
    """Modules of users are imported by these modules of ours: a new one has to say which setting names it."""
    settings_of = {
        "headwater.sinks.python.target": "function",
        "headwater.sources.python_source": "class",
        "headwater.cli.session": "HEADWATER_FUNCTIONS",
        "headwater.privacy.master_keys": "HEADWATER_KMS",
    }
    ours = {
        "headwater.catalog.connector_kinds",
        "headwater.cli.commands.demo",
        "headwater.core.extras",
    }
    importing = {
        module
        for module, call in calls("import_module")
        if argument(module, call, 0) is None and "." in module and not _is_package(module)
    }
    assert importing - ours == set(settings_of), (
        "a module that imports what a user names, and the setting that names it"
    )
    from headwater.spark import spark_session

    defaults = {**spark_session._DEFAULTS, **spark_session._HERE}
    ours_named = {name: (value,) for name, value in defaults.items() if value.startswith("headwater.")}
    return {**dict.fromkeys(settings_of.values(), ()), **ours_named}


def _is_package(module: str) -> bool:
    return Path(str(import_module(module).__file__)).name == "__init__.py"
