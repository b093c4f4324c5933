"""The collections of a workspace: its views, planned and with sources first, and the tables that they read."""

from __future__ import annotations

import threading
from collections import ChainMap, deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.dropped_columns import DroppedColumn
from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.errors import ColumnDroppedError, HeadwaterError, StatementError, UsageError
from headwater.engine.collections.collections import (
    ERRORS_NAME,
    Collection,
    DerivedRelation,
    TableCollection,
    ViewCollection,
    view_of,
)
from headwater.engine.collections.shadow_builds import SHADOW, verification_of
from headwater.engine.collections.version_table import VersionCollection, readable_versions
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.row_errors.diverted_rows import ERRORS, Admission
from headwater.engine.row_errors.late_rows import LATE_NAME, Lateness, late_schema
from headwater.log.protocol import Entry, Log
from headwater.plan.planner import Plan, Planner
from headwater.plan.relations.metadata_columns import (
    every_hidden,
    is_changelog,
    is_versions,
    table_topic,
    table_with_hidden,
)
from headwater.plan.relations.relations import Relation, Times
from headwater.plan.time.late_policy import Policy
from headwater.sql.lexer import words_of
from headwater.sql.standing_statements import parse_standing
from headwater.sql.statements import QueryText
from headwater.state.manifest import Manifest, ViewState, decode_schema, encode_schema

VIEW = "view"
PAST = "past view"
"""Kind of the catalog entries of replaced definitions, by name and incarnation: old ticks were computed by them."""

_Relations = dict[str, Collection | DerivedRelation]


@dataclass(frozen=True)
class Broken:
    """A view that cannot be planned at present, because its sources have changed or no longer exist."""

    definition: ViewDefinition
    reason: str
    waits: bool = False
    """Whether a pending replacement of a source will allow planning."""


@dataclass(frozen=True)
class Workload:
    """The collections that a tick advances, sources first, and the views that cannot be planned."""

    units: Sequence[Collection]
    broken: Mapping[str, Broken]
    until: int | None = None
    """The log commit that the tick must not pass, because a column is dropped there that a view reads; that view stops
    after it."""
    marks: Mapping[str, Sequence[DroppedColumn]] = field(default_factory=dict)
    """By topic, the dropped columns that the workload takes into account; it is invalid for a cut behind which there
    are others."""


_PLANNED_MAX = 64
"""Number of plans that are kept for views which have not run yet."""
_Premises = tuple[str, Mapping[str, Relation], Policy, tuple[str, ...]]
"""Everything that a plan depends on: the query, its relations, the policy for late rows, and the functions that it uses."""


class _Planned(NamedTuple):
    plan: Plan
    premises: _Premises


class Catalog:
    """The definitions in the log's catalog, made executable. Each is planned once, and again when it changes."""

    def __init__(self, log: Log, planner: Planner, evaluator: Evaluator) -> None:
        self._log = log
        self._planner = planner
        self._evaluator = evaluator
        self._made: dict[str, tuple[object, Collection]] = {}
        self._planned: deque[_Planned] = deque(maxlen=_PLANNED_MAX)
        self._known_times: dict[str, tuple[int, dict[str, Times]]] = {}
        self._guard = threading.RLock()

    def plan(
        self,
        query: QueryText,
        inputs: Mapping[str, Sequence[str]] | None = None,
        policy: Policy | None = None,
    ) -> Plan:
        """Plan a query over the current topics and views; `inputs` has the columns that existed when the query was
        declared."""
        relations = self._relations(inputs)
        if policy is not None and policy.emits:
            relations = self._timed(relations)
        counts_on = self._planner.signatures()(query.text)
        try:
            plan = self._planner.plan(query, relations, policy)
        except StatementError:
            self._refuse_dropped(query, relations, policy)
            raise
        met = {name: relations[name] for name in plan.inputs}
        with self._guard:
            self._planned.append(_Planned(plan, (query.text, met, policy or Policy(), counts_on)))
        return plan

    def _refuse_dropped(
        self, query: QueryText, relations: dict[str, Relation], policy: Policy | None
    ) -> None:
        """Raise ColumnDroppedError if a query cannot be planned only because it names a dropped column."""
        words = {word.text.lower() for word in words_of(query.text) if word.is_name}
        lost = {
            name: topic
            for name, topic in self._log.topics().items()
            if name.lower() in words and any(one.column.lower() in words for one in unread(topic))
        }
        whole = {name: _topic_relation(topic, topic.schema.names) for name, topic in lost.items()}
        if not whole:
            return
        found: list[tuple[str, DroppedColumn]] = []
        with suppress(StatementError):
            found = dropped_in(self._planner.plan(query, {**relations, **whole}, policy), lost)
        for topic, one in found:
            raise one.error(topic)

    def relations_of(self, view: ViewDefinition) -> dict[str, Relation]:
        """Return the relations that a view reads, as planning sees them, with their event times."""
        relations = self._relations(view.inputs)
        return self._timed({name: relations[name] for name in view.reads if name in relations})

    def _timed(self, relations: Mapping[str, Relation]) -> dict[str, Relation]:
        """Return the relations, with the event-time columns of those that are views."""
        views = definitions(self._log)
        return {
            name: replace(relation, times=self._times(views[name])) if name in views else relation
            for name, relation in relations.items()
        }

    def _times(self, view: ViewDefinition) -> dict[str, Times]:
        known = self._known_times.get(view.name)
        if known is None or known[0] != view.incarnation:
            places = self._planner.times(QueryText(view.query), self.relations_of(view))
            times = {view.columns.names[place]: times for place, times in places.items()}
            known = self._known_times[view.name] = (view.incarnation, times)
        return known[1]

    def plan_with(self, reader: ViewDefinition, other: ViewDefinition) -> Plan:
        """Plan a view as if another view that it reads had the definition `other`."""
        relations = self._relations(reader.inputs)
        columns = _chosen(other.columns, reader.inputs.get(other.name))
        relations[other.name] = Relation(other.name, columns, append_only=False)
        return self._planner.plan(QueryText(reader.query), relations, Policy.of(reader))

    def widened(self, topic: TopicDefinition) -> dict[str, ViewDefinition]:
        """Return the views whose plans change when a topic is widened to the given definition, with their new definitions.

        These include views that were not replaced when the topic was widened before.
        """
        units = {unit.name: unit for unit in self.units() if isinstance(unit, ViewCollection)}
        topics = {**self._log.topics(), topic.name: topic}
        changed: dict[str, ViewDefinition] = {}
        known = definitions(self._log)
        for view in in_order(known):
            relations = {}
            for name in view.reads:
                below = changed.get(name) or known.get(name)
                if name in topics or (name in units and name not in changed):
                    relations[name] = self._relation(name, view.inputs.get(name), units, topics)
                elif below is not None:
                    relations[name] = _view_relation(below, view.inputs.get(name))
            if relations.keys() != set(view.reads):
                continue
            plan = self._planner.plan(QueryText(view.query), relations, Policy.of(view))
            unit = units.get(view.name)
            if unit is None or plan.fingerprint != unit.plan.fingerprint:
                fields = zip(view.columns.names, plan.schema.types, strict=True)
                late = None if view.late is None else late_schema(plan.late)
                changed[view.name] = replace(view, columns=pa.schema(list(fields)), late=late)
        return changed

    def units(self) -> Sequence[Collection]:
        """Return all collections, sources first."""
        return self.workload({}).units

    def workload(self, served: Mapping[str, int], reached: int | None = None) -> Workload:
        """Return the collections that a tick advances; `served` has the incarnations of the views that are live in the
        last tick.

        A view that was redeclared since then gets a shadow build, while the served version goes on. `reached` is the
        log commit up to which the last tick has read everything: views that read a column which was dropped before it
        cannot go on. If it is None, dropped columns are not checked.
        """
        with self._guard:
            return self._workload(served, reached)

    def _workload(self, served: Mapping[str, int], reached: int | None) -> Workload:
        views = definitions(self._log)
        old = {
            name: past
            for name, view in views.items()
            if (past := replaced(self._log, view, served.get(name))) is not None
        }
        topics = self._log.topics()
        units: dict[str, Collection] = {}
        derived_relations: dict[str, DerivedRelation] = {}
        relations: Mapping[str, Collection | DerivedRelation] = ChainMap(
            cast(_Relations, derived_relations), cast(_Relations, units)
        )
        broken: dict[str, Broken] = {}
        until: int | None = None
        used: set[str] = set()
        signatures = self._planner.signatures()
        for definition in in_order(views, {name: past.definition for name, past in old.items()}):
            before = old.get(definition.name)
            for each in (before.definition if before else None, definition):
                if each is None:
                    continue
                types = before.types if before is not None and each is not definition else {}
                try:
                    unit = self._view(each, relations, topics, types, signatures)
                    used.add(_made_name(each))
                    if reached is not None and (lost := dropped_in(unit.plan, topics)):
                        if served.get(each.name) != each.incarnation or reached >= lost[0][1].sequence:
                            raise lost[0][1].error(lost[0][0], each.name)
                        until = min(lost[0][1].sequence, until or lost[0][1].sequence)
                except HeadwaterError as error:
                    if error.retryable:
                        raise  # the error is not specific to the view
                    if each is definition and definition.name not in old:
                        waits = any(view_of(name) in old for name in definition.reads)
                        broken[definition.name] = Broken(definition, _because(error, each, broken), waits)
                    continue
                for source, name in unit.sources.items():
                    topic = table_topic(source) if is_versions(source) else source
                    if topic in topics and name not in units:
                        units[name] = self._table(topics[topic], name)
                        used.add(name)
                if each is definition and definition.name in units:
                    unit = unit.shadow(verification_of(self._log, definition.name, definition.incarnation))
                units[unit.name] = unit
                if unit.replaces is None:
                    derived_relations |= {derived.name: derived for derived in unit.derived}
        for name in [n for n in self._made if n not in used]:
            del self._made[name]
        return Workload(list(units.values()), broken, until, marks_of(topics))

    def _table(self, topic: TopicDefinition, name: str) -> Collection:
        """Return the collection of this name for a topic: its table, with or without metadata columns, or its versions."""
        known = (topic.incarnation, topic.schema_version)
        if name not in self._made or self._made[name][0] != known:
            hidden = name == table_with_hidden(topic.name)
            unit = (
                VersionCollection(topic) if is_versions(name) else TableCollection(topic, with_hidden=hidden)
            )
            self._made[name] = (known, unit)
        return self._made[name][1]

    def _view(
        self,
        definition: ViewDefinition,
        units: Mapping[str, Collection | DerivedRelation],
        topics: Mapping[str, TopicDefinition],
        types: Mapping[str, pa.Schema],
        signatures: Callable[[str], tuple[str, ...]],
    ) -> ViewCollection:
        """Return the collection of a view, planned if necessary.

        `types`: the columns of topics as the view knows them, if they have been widened since; `signatures`: returns
        the functions that a query uses.
        """
        for name in definition.reads:
            if name not in topics and name not in units:
                raise UsageError(
                    f"it reads {name}, which does not exist or cannot be maintained",
                    reason="missing-input",
                    missing=name,
                )
        below = tuple(_shape(topics[n]) if n in topics else units[n].identity for n in definition.reads)
        known = (definition.incarnation, below, signatures(definition.query))
        made_name = _made_name(definition)
        if made_name not in self._made or self._made[made_name][0] != known:
            relations = {
                n: self._relation(n, definition.inputs.get(n), units, topics) for n in definition.reads
            }
            for name, schema in types.items():
                relations[name] = replace(relations[name], schema=schema)
            policy = Policy.of(definition)
            if policy.emits:
                relations = self._timed(relations)
            plan = self._taken((definition.query, relations, policy, known[2]))
            if plan is None:
                plan = self._planner.plan(QueryText(definition.query), relations, policy)
            if plan.schema.types != definition.columns.types:
                raise UsageError("the type of a column that it reads has changed", reason="input-type")
            pipeline = Dataflow(plan.root, self._evaluator, plan.expiries)
            read = {n: topics[n] for n in definition.reads if n in topics}
            admission = admission_of(definition, plan, topics, self._evaluator)
            lateness = lateness_of(definition, plan, topics, self._evaluator)
            self._made[made_name] = (
                known,
                ViewCollection(definition, plan, pipeline, read, admission, lateness),
            )
        made = self._made[made_name][1]
        assert isinstance(made, ViewCollection)
        return made

    def _taken(self, premises: _Premises) -> Plan | None:
        """Remove and return the plan that was made when a view was declared, for its first run: planning again takes
        half a second."""
        for place, planned in enumerate(self._planned):
            if planned.premises == premises:
                del self._planned[place]
                return planned.plan
        return None

    def _relation(
        self,
        name: str,
        columns: Sequence[str] | None,
        units: Mapping[str, Collection | DerivedRelation],
        topics: Mapping[str, TopicDefinition],
    ) -> Relation:
        if name in topics:
            return _topic_relation(topics[name], columns)
        unit = units[name]
        chosen = _chosen(unit.schema, columns)
        places = tuple(unit.schema.names.index(column) for column in chosen.names)
        return Relation(name, chosen, unit.append_only, places=places)

    def _relations(self, inputs: Mapping[str, Sequence[str]] | None) -> dict[str, Relation]:
        known = inputs or {}
        relations = {
            name: _topic_relation(topic, known.get(name)) for name, topic in self._log.topics().items()
        }
        for name, view in definitions(self._log).items():
            relations[name] = Relation(name, view.columns, append_only=False)
            for derived, columns in derived_of(view).items():
                relations[derived] = Relation(derived, columns, append_only=False)
        return relations


def definitions(log: Log) -> dict[str, ViewDefinition]:
    """Return the definitions of all views, by name."""
    return {name: _definition(entry) for name, entry in log.entries(VIEW).items()}


def _definition(entry: Entry) -> ViewDefinition:
    """Return the definition in an entry, parsed once, because every tick reads all of them."""
    known = _READ.get((entry.name, entry.sequence))
    if known is None or (
        known[0] is not entry.document and known[0] != entry.document
    ):  # an entry of another workspace
        known = (entry.document, ViewDefinition.from_document(entry.document, entry.sequence))
        if len(_READ) >= _READ_MAX:
            _READ.clear()
        _READ[entry.name, entry.sequence] = known
    return known[1]


_READ: dict[tuple[str, int], tuple[Mapping[str, Any], ViewDefinition]] = {}
_READ_MAX = 4_096


def derived_of(view: ViewDefinition) -> dict[str, pa.Schema]:
    """Return the columns of a view's derived relations, by the name of the relation."""
    errors = {f"{view.name}.{ERRORS_NAME}": ERRORS} if view.options.on_error == "divert" else {}
    return errors if view.late is None else {**errors, f"{view.name}.{LATE_NAME}": view.late}


def admission_of(
    view: ViewDefinition, plan: Plan, topics: Container[str], evaluator: Evaluator
) -> Admission | None:
    """Return the admission of rows for a view that diverts rows that fail; None for other views."""
    if view.options.on_error != "divert":
        return None
    known = {n: view.inputs[n] for n in plan.reads if n in topics}
    if parse_standing(view.query) is not None:  # a query that cannot be parsed is a failing row
        known |= {n: view.inputs[table_topic(n)] for n in plan.reads if is_changelog(n)}
    return Admission(plan.root, known, evaluator)


def lateness_of(
    view: ViewDefinition, plan: Plan, topics: Mapping[str, TopicDefinition], evaluator: Evaluator
) -> Lateness | None:
    """Return the detection of late rows for a view that excludes late rows; None for other views."""
    if not plan.late:
        return None
    times = {graph.topic: str(topics[graph.topic].time) for graph in plan.late}
    schema = late_schema(plan.late) if view.late is None else view.late
    return Lateness(plan.late, times, schema, evaluator, is_reported=view.late is not None)


def keep_past(log: Log, name: str, *, served: bool, types: Mapping[str, pa.Schema] | None = None) -> None:
    """Keep the current definition of a view for the ticks that it computes, before it is replaced or dropped.

    `served`: whether the definition remains active until its replacement has caught up; `types`: columns of topics as
    the definition knows them, for topics that are about to be widened.
    """
    entry = log.entries(VIEW)[name]
    past = f"{name}@{entry.sequence}"
    for earlier, kept in log.entries(PAST).items() if not served else ():
        if earlier.rpartition("@")[0] == name and kept.document["served"]:
            log.put_entry(PAST, earlier, {**kept.document, "served": False}, expect=kept.sequence)
    if past not in log.entries(PAST):
        known = {topic: encode_schema(schema) for topic, schema in (types or {}).items()}
        log.put_entry(PAST, past, {"view": entry.document, "served": served, "types": known}, expect=None)


def definition_at(log: Log, name: str, incarnation: int) -> ViewDefinition | None:
    """Return the current or a replaced definition of a view, by its incarnation; None if there is none."""
    view = definitions(log).get(name)
    if view is not None and view.incarnation == incarnation:
        return view
    entry = log.entries(PAST).get(f"{name}@{incarnation}")
    return None if entry is None else ViewDefinition.from_document(entry.document["view"], incarnation)


@dataclass(frozen=True)
class ServedDefinition:
    """A definition that remains active until its replacement has caught up."""

    definition: ViewDefinition
    types: Mapping[str, pa.Schema]
    """Columns of topics as the definition knows them, for topics that have been widened since."""


def replaced(log: Log, view: ViewDefinition, served: int | None) -> ServedDefinition | None:
    """Return the definition that is served until its replacement `view` is built, or None."""
    if served is None or served == view.incarnation:
        return None
    entry = log.entries(PAST).get(f"{view.name}@{served}")
    if entry is None or not entry.document["served"]:
        return None
    types = {topic: decode_schema(text) for topic, text in entry.document["types"].items()}
    return ServedDefinition(ViewDefinition.from_document(entry.document["view"], served), types)


def state_of(log: Log, view: ViewDefinition, manifest: Manifest | None) -> ViewState | None:
    """Return the state of a view in a manifest: of its current definition or, during a shadow build, of the served
    definition."""
    state = manifest.views.get(view.name) if manifest is not None else None
    if manifest is None or state is None or state.incarnation == view.incarnation:
        return state
    if replaced(log, view, state.incarnation) is None:
        return None
    build = manifest.views.get(f"{view.name}{SHADOW}")
    reason = "a new definition is being built as a shadow build"
    if verification_of(log, view.name, view.incarnation) is not None:
        reason = "a shadow build of it is running"
    if build is not None and build.status == "stopped":
        reason = f"the shadow build of its new definition has stopped, and the previous definition stays active: {build.reason}"
    return replace(state, reason=reason)


def in_order(
    views: Mapping[str, ViewDefinition], also: Mapping[str, ViewDefinition] | None = None
) -> list[ViewDefinition]:
    """Return views in dependency order; `also` has second definitions of some views, whose sources come first too."""
    done: dict[str, ViewDefinition] = {}
    begun: set[str] = set()

    def visit(view: ViewDefinition) -> None:
        if view.name in begun:  # a served view may read a reader of its successor
            return
        begun.add(view.name)
        second = (also or {}).get(view.name)
        for name in map(view_of, (*view.reads, *(second.reads if second is not None else ()))):
            if name in views:
                visit(views[name])
        done[view.name] = view

    for name in sorted(views):
        visit(views[name])
    return list(done.values())


def _made_name(definition: ViewDefinition) -> str:
    return f"{definition.name}@{definition.incarnation}"


def _because(error: HeadwaterError, view: ViewDefinition, broken: Mapping[str, Broken]) -> str:
    """Return why a view cannot be planned; if a view that it reads cannot be planned either, that is the reason."""
    below = next((name for name in map(view_of, view.reads) if name in broken), None)
    if below is not None:
        return f"it reads {below}, which is stopped: {broken[below].reason}"
    return f"{error.message}; {error.hint}" if isinstance(error, ColumnDroppedError) else error.message


def marks_of(topics: Mapping[str, TopicDefinition]) -> dict[str, Sequence[DroppedColumn]]:
    """Return, by topic, the columns that were dropped in the source from which it is captured."""
    return {name: topic.dropped for name, topic in topics.items() if topic.dropped}


def unread(topic: TopicDefinition) -> list[DroppedColumn]:
    """Return the columns of a topic that views no longer read: dropped in its source, and not accepted by the user."""
    return [one for one in topic.dropped if not one.accepted]


def dropped_in(plan: Plan, topics: Mapping[str, TopicDefinition]) -> list[tuple[str, DroppedColumn]]:
    """Return the dropped columns that a plan reads and can no longer read, with their topics, in the order of the drops."""
    lost = {name: unread(topics[name]) for name in plan.inputs if name in topics and topics[name].dropped}
    if not any(lost.values()):
        return []
    read = plan.columns_read()
    found = [(name, one) for name, marks in lost.items() for one in marks if one.column in read.get(name, ())]
    return sorted(found, key=lambda each: (each[1].sequence, each[0], each[1].column))


def _topic_relation(topic: TopicDefinition, columns: Sequence[str] | None) -> Relation:
    if columns is None and topic.dropped:
        gone = {one.column for one in unread(topic)}
        columns = [name for name in topic.schema.names if name not in gone]
    chosen = _chosen(topic.schema, columns)
    places = tuple(map(topic.schema.names.index, chosen.names))
    versions = readable_versions(topic)
    return Relation(
        topic.name,
        chosen,
        append_only=not topic.key,
        hidden=every_hidden(topic),
        places=None if places == tuple(range(len(places))) else places,
        times={topic.time: Times(frozenset([topic.name]))} if topic.time is not None else {},
        is_stream=not topic.key and topic.time is not None,
        versions=replace(versions, key=tuple(map(places.index, versions.key))),
    )


def _view_relation(view: ViewDefinition, columns: Sequence[str] | None) -> Relation:
    chosen = _chosen(view.columns, columns)
    places = tuple(view.columns.names.index(column) for column in chosen.names)
    return Relation(view.name, chosen, append_only=False, places=places)


def _chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns that existed when the view was declared: columns that were added later are ignored."""
    if columns is None:
        return schema
    for name in columns:
        if name not in schema.names:
            raise UsageError(
                f"column {name!r}, which it reads, does not exist any more",
                reason="missing-column",
                name=name,
            )
    return pa.schema([schema.field(name) for name in columns])


def _shape(topic: TopicDefinition) -> str:
    return f"{topic.incarnation}:{topic.schema_version}"
