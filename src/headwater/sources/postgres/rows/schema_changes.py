"""Effect of a schema change on a topic: dropped columns are marked; if the topic refuses schema changes, the table stops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.dropped_columns import DroppedColumn
from headwater.core.errors import SchemaError
from headwater.core.types import format_type, quote
from headwater.sources.postgres.decode.relations import CapturedTable, Evolution, TableFacts


def with_marks(
    definition: TopicDefinition,
    evolution: Evolution,
    table: CapturedTable,
    facts: TableFacts | None,
    added: Sequence[str],
) -> TopicDefinition:
    """Return the topic after a schema change, with marks for the columns that the table no longer has; `added` are its new
    columns.

    The stream may describe an earlier state of the table: a mark is removed only if the current catalog has the column, too.
    """
    now = {column.name for column in facts.columns} if facts is not None else set()
    marked = {one.column: one for one in definition.dropped}
    marks = []
    for name in evolution.definition.schema.names:
        if name in evolution.dropped:
            marks.append(
                marked.get(name) or DroppedColumn(name, _drop_note(definition, table, name, now, added))
            )
        elif name in marked and name not in now:
            marks.append(marked[name])
    return dataclasses.replace(evolution.definition, dropped=tuple(marks))


def breaks_contract(
    definition: TopicDefinition, evolution: Evolution, table: CapturedTable
) -> SchemaError | None:
    """Return the error for a schema change of a topic with schema_changes = 'refuse'; None if the change is allowed."""
    if definition.schema_changes != "refuse":
        return None
    known = {one.column for one in definition.dropped}
    kinds = {column.name: format_type(column.type.kind) for column in table.columns}
    said = [f"added column {name} {kinds[name]}" for name in evolution.added]
    said += [f"dropped column {name}" for name in evolution.dropped if name not in known]
    said += [f"changed column {name} to {kinds[name]}" for name in evolution.widened]
    if not said:
        return None
    topic = quote(definition.name)
    return SchemaError(
        f"its schema changed ({', '.join(said)}), and topic {definition.name!r} has schema_changes = 'refuse'",
        detail="the topic is unchanged; changes of this table are no longer captured, all other tables continue",
        hint=f"ALTER TOPIC {topic} SET (schema_changes = 'follow') applies the change to the topic, or change the table back",
        topic=definition.name,
        changes=tuple(said),
        reason="schema-changes-refused",
    )


def _drop_note(
    definition: TopicDefinition, table: CapturedTable, column: str, now: set[str], added: Sequence[str]
) -> str:
    where = f"in source {definition.captured_by!r}"
    if column in now:
        return f"{table.relation.table}.{column} is no longer published {where}"
    kinds = {c.name: c.type.kind for c in table.columns}
    kind = definition.schema.field(column).type
    alike = [name for name in added if kinds[name] == kind]
    renamed = f" or renamed to {alike[0]}" if len(alike) == 1 else ""
    return f"{table.relation.table}.{column} was dropped{renamed} {where}"
