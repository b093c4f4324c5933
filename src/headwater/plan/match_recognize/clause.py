"""MATCH_RECOGNIZE in a parsed plan: the clause becomes a node that Spark leaves unchanged, over the rows to be matched.

The node is Spark's node for functions over whole groups. Its function is a placeholder that lists the matched columns and
the number of the pattern in `Catalyst.matches`. Its child is a projection of the relation: the columns of PARTITION BY and
ORDER BY, and all inputs of expressions. Spark determines the types of measures over a relation of their inputs; see
`pattern_expressions`. Lowering turns the node into a graph node; batch runs execute it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headwater.operators import graph as g
from headwater.operators.match_recognize import spec as k
from headwater.operators.zset.collation import ColumnOrder
from headwater.plan.match_recognize.pattern_aggregates import Folding, plain_call
from headwater.plan.match_recognize.pattern_expressions import ExpressionReader
from headwater.plan.match_recognize.pattern_inputs import MatchRead, PatternInputs
from headwater.plan.match_recognize.pattern_scope import RowColumns
from headwater.plan.relations.relations import Bound
from headwater.plan.relations.time_bounds import span_of
from headwater.plan.rewrite.cumulate_window import exchanged_subqueries, rewritten_plan
from headwater.plan.rewrite.determinism import Determinism
from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    children_of,
    conjuncts,
    find,
    identity,
    items,
    kind,
    module,
    output_of,
    readable,
)
from headwater.sql.lexer import words_of
from headwater.sql.match_recognize_clause import ClausePart, MatchClause, pointed, read_match
from headwater.sql.match_recognize_places import HINT, match_places
from headwater.sql.ordered_aggregates import SparkQuery, spark_query
from headwater.sql.statements import QueryText

NODE = "FlatMapGroupsInArrow"
TIMED_OUT = "timed_out"
"""Name of the column, after the measures, that EMIT TIMEOUTS adds."""
_MARK = "headwater.match"
_NOT_A_NEWLINE = re.compile(r"[^\n]")
_NEVER_FAIL = (
    "AttributeReference",
    "Literal",
    "EqualTo",
    "EqualNullSafe",
    "LessThan",
    "LessThanOrEqual",
    "GreaterThan",
    "GreaterThanOrEqual",
    "And",
    "Or",
    "Not",
    "In",
    "InSet",
    "IsNull",
    "IsNotNull",
)


def matched_by(plan: Jvm, catalyst: Catalyst) -> g.RowPattern:
    """Return the pattern of a plan node."""
    found: g.RowPattern = catalyst.matches[children_of(plan.functionExpr())[1].value()]
    return found


def renumbered(
    catalyst: Catalyst, plan: Jvm, matching: g.RowPattern, output: Sequence[Jvm], child: Jvm
) -> Jvm:
    """Return a copy of a plan node with another pattern, output and child; the child must have the same columns."""
    number = len(catalyst.matches)
    catalyst.matches[number] = matching
    parts = children_of(plan.functionExpr())
    literal = module(catalyst.expressions, "Literal").apply(number)
    function = plan.functionExpr().withNewChildren(catalyst.seq([parts[0], literal, *parts[2:]]))
    return plan.copy(plan.groupingAttributes(), function, catalyst.seq(output), child)


def is_match(plan: Jvm) -> bool:
    """Whether a plan node is a MATCH_RECOGNIZE node."""
    return kind(plan) == NODE


def columns_matched(plan: Jvm) -> list[Jvm]:
    """Return the input attributes of a node that are the columns of the matched rows."""
    return children_of(plan.functionExpr())[3::2]


def with_relations_named(catalyst: Catalyst, parsed: Jvm, text: str) -> Jvm:
    """Inline WITH into a parsed plan, so that the relation of a MATCH_RECOGNIZE can be analysed separately."""
    return _inlined(catalyst, parsed, {}) if match_places(text) else parsed


def with_matches(catalyst: Catalyst, parsed: Jvm, query: QueryText, refuse: Refuse) -> Jvm:
    """Return a parsed plan with a node for each MATCH_RECOGNIZE of a query."""
    places = match_places(query.text)
    if not places:
        return parsed
    clauses = [read_match(query, place) for place in places]
    read = spark_query(query.text)

    def change(plan: Jvm) -> Jvm:
        if kind(plan) != "UnresolvedHint" or plan.name() != HINT:
            return plan
        clause = clauses[items(plan.parameters())[0].value()]
        return _Match(catalyst, query, clause, read, refuse).node(plan)

    return rewritten_plan(catalyst, parsed, change)


def _inlined(catalyst: Catalyst, plan: Jvm, known: dict[str, Jvm]) -> Jvm:
    if kind(plan) == "UnresolvedWith" and not plan.allowRecursion():
        for named in items(plan.cteRelations()):
            known = {**known, named._1().lower(): _inlined(catalyst, named._2(), known)}
        return _inlined(catalyst, plan.child(), known)
    if kind(plan) == "UnresolvedRelation":
        parts = items(plan.multipartIdentifier())
        return known.get(parts[0].lower(), plan) if len(parts) == 1 else plan
    children = children_of(plan)
    changed = [_inlined(catalyst, child, known) for child in children]
    if any(a is not b for a, b in zip(children, changed, strict=True)):
        plan = plan.withNewChildren(catalyst.seq(changed))
    return exchanged_subqueries(catalyst, plan, lambda below: _inlined(catalyst, below, known))


class _Match:
    """Builds the node of one clause."""

    def __init__(
        self, catalyst: Catalyst, query: QueryText, clause: MatchClause, read: SparkQuery, refuse: Refuse
    ) -> None:
        self._c = catalyst
        self._query = query
        self._clause = clause
        self._read = read
        self._refuse = refuse
        self._origin = module(catalyst.jvm.org.apache.spark.sql.catalyst.trees, "CurrentOrigin")

    def node(self, hint: Jvm) -> Jvm:
        """Return the node that replaces a hint; the hint is over a query of all columns of the relation."""
        c, clause = self._c, self._clause
        relation = hint.child().child()
        shown = [a.name() for a in output_of(self._analysed(hint.child()))]
        columns = RowColumns(shown)
        partition = [columns.place(self._plain(part)) for part in clause.partition]
        order = [columns.place(self._parsed(part.expression)) for part in clause.order]
        prefixes = {self._read.now(p.call): p.is_final for p in clause.prefixes}
        reader = ExpressionReader(c, clause, columns, prefixes, self._refuse)
        conditions = {
            clause.pattern.variables[name]: reader.read(self._parsed(part), is_condition=True)
            for name, part in clause.conditions.items()
        }
        measures = [
            (name, reader.read(self._parsed(part), is_condition=False)) for name, part in clause.measures
        ]
        if clause.rows != "one":
            for name in shown:
                columns.place(self._attribute(name))
        rows = self._rows(columns, relation)
        made = _Expressions(c, rows, reader.found, self._refuse)
        numbered = {variable: made.condition(read, variable) for variable, read in conditions.items()}
        measured = [made.measure(read) for _, read in measures]
        order_keys = tuple(
            ColumnOrder(place, part.descending, part.nulls_first)
            for place, part in zip(order, clause.order, strict=True)
        )
        within = None if clause.within is None else self._span(clause.within)
        time = order[0] if self._is_time(rows, clause, order) else None
        if within is not None and time is None:
            part = clause.order[0].expression
            raise pointed(
                self._query,
                part.start,
                part.end,
                "WITHIN needs rows ordered by time",
                "write ORDER BY with a TIMESTAMP column first, ascending",
                reason="within-without-time",
            )
        typed = [(name, made.typed[number]) for (name, _), number in zip(measures, measured, strict=True)]
        attributes, output = self._output_columns(rows, partition, order, shown, typed)
        spec = k.MatchSpec(
            schema=c.arrow_schema(output_of(rows)),
            partition=tuple(dict.fromkeys(partition)),
            order=order_keys,
            pattern=clause.pattern.tree,
            text=clause.pattern_text,
            expressions=tuple(made.specs),
            conditions=numbered,
            measures=tuple(measured),
            shown=output,
            rows=clause.rows,
            skip=k.Skip(clause.skip, None if clause.skip_to is None else clause.variables(clause.skip_to)),
            within=within,
            time=time,
            timeouts=clause.timeouts,
            work_max=k.WORK_MAX,
        )
        number = len(c.matches)
        c.matches[number] = g.RowPattern(spec, tuple(made.expressions), self._text())
        return self._match_node(hint, rows, number, spec, attributes)

    def _match_node(
        self, hint: Jvm, rows: Jvm, number: int, spec: k.MatchSpec, attributes: Sequence[Jvm]
    ) -> Jvm:
        c = self._c
        literal = module(c.expressions, "Literal")
        given = output_of(rows)
        fields = [literal.apply(_MARK), literal.apply(number)]
        for place, attribute in enumerate(given):
            fields += [literal.apply(f"c{place}"), attribute]
        self._origin.set(hint.origin())
        try:
            function = c.expressions.CreateNamedStruct(c.seq(fields))
            groups = c.seq([given[place] for place in spec.partition])
            return c.plans.FlatMapGroupsInArrow(groups, function, c.seq(attributes), rows)
        finally:
            self._origin.reset()

    # --- rows ------------------------------------------------------------------------------------------------------

    def _rows(self, columns: RowColumns, relation: Jvm) -> Jvm:
        """Return the relation projected to the matched columns."""
        c = self._c
        named = []
        for place, expression in enumerate(columns.expressions):
            is_plain = kind(expression) == "UnresolvedAttribute"
            name = items(expression.nameParts())[-1] if is_plain else f"column {place}"
            named.append(c.alias(expression, name))
        return self._analysed(c.plans.Project(c.seq(named), relation))

    def _is_time(self, rows: Jvm, clause: MatchClause, order: Sequence[int]) -> bool:
        first = output_of(rows)[order[0]]
        return first.dataType().typeName() == "timestamp" and not clause.order[0].descending

    def _output_columns(
        self,
        rows: Jvm,
        partition: Sequence[int],
        order: Sequence[int],
        names: Sequence[str],
        measures: Sequence[tuple[str, Jvm]],
    ) -> tuple[list[Jvm], tuple[k.Shown, ...]]:
        """Return the output attributes and the origin of each. `names` are the columns of the relation; `measures` have
        their types."""
        c, clause = self._c, self._clause
        given = output_of(rows)
        first = list(dict.fromkeys(partition))
        rest: list[int] = []
        if clause.rows != "one":
            own = [next(i for i, a in enumerate(given) if a.name().lower() == name.lower()) for name in names]
            first += [place for place in dict.fromkeys(order) if place in own and place not in first]
            rest = [place for place in own if place not in first]
        output = [k.Shown(given[place].name(), "column", place) for place in first]
        attributes = [given[place].newInstance() for place in first]
        for number, (name, expression) in enumerate(measures):
            output.append(k.Shown(name, "measure", number))
            attributes.append(c.alias(expression, name).toAttribute())
        output += [k.Shown(given[place].name(), "column", place) for place in rest]
        attributes += [given[place].newInstance() for place in rest]
        if clause.timeouts:
            output.append(k.Shown(TIMED_OUT, "timed out"))
            attributes.append(c.alias(module(c.expressions, "Literal").apply(False), TIMED_OUT).toAttribute())
        seen: set[str] = set()
        for each in output:
            if each.name.lower() in seen:
                raise pointed(
                    self._query,
                    clause.place.start,
                    clause.place.end,
                    f"the result has two columns named {each.name!r}",
                    "give the measure another name",
                    reason="duplicate-column",
                    name=each.name,
                )
            seen.add(each.name.lower())
        return [a.withNullability(True) for a in attributes], tuple(output)

    # --- texts -----------------------------------------------------------------------------------------------------

    def _parsed(self, part: ClausePart) -> Jvm:
        """Parse an expression of the clause, padded so that Spark's error positions refer to the whole query."""
        text = self._query.text
        own = text[part.start : part.end]
        for prefix in self._clause.prefixes:
            if part.start <= prefix.start < part.end:
                blank = " " * (prefix.end - prefix.start)
                own = own[: prefix.start - part.start] + blank + own[prefix.end - part.start :]
        before = self._read.text[: self._read.now(part.start)]
        padded = _NOT_A_NEWLINE.sub(" ", before) + own
        return self._c.session.sessionState().sqlParser().parseExpression(padded)

    def _plain(self, part: ClausePart) -> Jvm:
        parsed = self._parsed(part)
        if kind(parsed) != "UnresolvedAttribute":
            raise pointed(
                self._query,
                part.start,
                part.end,
                "PARTITION BY takes only columns",
                "compute the value in a subquery: FROM (SELECT *, ... AS k FROM t) MATCH_RECOGNIZE (PARTITION BY k ...",
                reason="partition-by-expression",
            )
        return parsed

    def _span(self, part: ClausePart) -> int:
        c = self._c
        alias = c.alias(self._parsed(part), "within")
        one = c.plans.OneRowRelation()
        plan = self._analysed(c.plans.Project(c.seq([alias]), one))
        span = span_of(items(plan.projectList())[0].child())
        if span is None or span <= 0:
            raise pointed(
                self._query,
                part.start,
                part.end,
                "WITHIN takes a constant interval of days, hours, minutes and seconds, greater than zero",
                "write WITHIN INTERVAL 30 MINUTES",
                reason="within-not-constant",
            )
        return span

    def _text(self) -> str:
        place = self._clause.place
        whole = self._query.text[place.start : place.end]
        return " ".join(whole[w.start : w.end] for w in words_of(whole))

    def _attribute(self, name: str) -> Jvm:
        analysis = self._c.jvm.org.apache.spark.sql.catalyst.analysis
        return module(analysis, "UnresolvedAttribute").apply(self._c.seq([name]))

    def _analysed(self, plan: Jvm) -> Jvm:
        return self._c.dataset(plan).queryExecution().analyzed()


class _Expressions:
    """The expressions of a clause, typed by Spark and numbered."""

    def __init__(self, catalyst: Catalyst, rows: Jvm, found: PatternInputs, refuse: Refuse) -> None:
        self._c = catalyst
        self._refuse = refuse
        self._found = found
        self._columns = output_of(rows)
        self.specs: list[k.PatternExpression] = []
        self.expressions: list[g.Expression] = []
        self.typed: dict[int, Jvm] = {}
        """Spark's typed expressions, by number."""
        self._finals: dict[int, Jvm] = {}
        self._buffers: dict[int, list[Jvm]] = {}
        self._leaf = [self._leaf_of(number, each) for number, each in enumerate(found.inputs)]
        for argument in found.arguments:
            if argument.column is not None:
                attribute = self._columns[argument.column]
                self._add(attribute, (k.Navigate(argument.column),), (attribute,))
            elif argument.read is not None:
                self._numbered(self._typed(argument.read))
        self._aggregate()

    def condition(self, read: MatchRead, variable: str) -> tuple[int, ...]:
        """Return the numbers of the expressions that a condition consists of."""
        whole = self._typed(read)
        if whole.dataType().typeName() != "boolean":
            self._refuse(
                read.written,
                f"a condition must be BOOLEAN, and this is {whole.dataType().sql()}",
                reason="condition-not-boolean",
            )
        parts = list(conjuncts(whole))
        early = [self._is_symbol(part, variable) for part in parts]
        guard = early.index(False) if False in early else len(parts)
        chosen = [
            is_symbol and (place < guard or _never_fails(part))
            for place, (part, is_symbol) in enumerate(zip(parts, early, strict=True))
        ]
        groups = [[p for p, c in zip(parts, chosen, strict=True) if c is wanted] for wanted in (True, False)]
        return tuple(self._numbered(self._joined(some)) for some in groups if some)

    def measure(self, read: MatchRead) -> int:
        """Return the number of the expression of a measure."""
        return self._numbered(self._typed(read))

    def _joined(self, parts: Sequence[Jvm]) -> Jvm:
        whole = parts[0]
        for part in parts[1:]:
            whole = self._c.expressions.And(whole, part)
        return whole

    def _is_symbol(self, e: Jvm, variable: str) -> bool:
        made = k.PatternExpression(tuple(self._read_by(e)), pa.bool_())
        return all(k.is_fixed(each, variable) for each in made.inputs)

    def _read_by(self, e: Jvm) -> list[k.Input]:
        read = {identity(a) for a in items(e.references().toSeq())}
        return [self._found.inputs[i] for i, a in enumerate(self._leaf) if identity(a) in read]

    def _numbered(self, e: Jvm) -> int:
        """Add an expression over inputs, in which aggregates are replaced by their buffers; return its number."""
        read = {identity(a) for a in items(e.references().toSeq())}
        places = [i for i, a in enumerate(self._leaf) if identity(a) in read]
        attributes: list[Jvm] = []
        for place in places:
            attributes += self._buffers.get(place, [self._leaf[place]])
        finals = {identity(self._leaf[place]): final for place, final in self._finals.items()}
        if finals:
            e = self._c.rewritten(
                e, lambda a: finals.get(identity(a)) if kind(a) == "AttributeReference" else None
            )
        return self._add(e, tuple(self._found.inputs[place] for place in places), tuple(attributes))

    def _add(self, e: Jvm, inputs: tuple[k.Input, ...], attributes: tuple[Jvm, ...]) -> int:
        number = len(self.specs)
        try:
            type_ = self._c.arrow_type(e.dataType())
        except TypeError as error:
            self._refuse(
                e,
                f"a view cannot store values of type {error}",
                hint="cast it to another type",
                reason="unsupported-type",
                type=str(error),
            )
        column = None
        if kind(e) == "AttributeReference":
            column = next((i for i, a in enumerate(attributes) if identity(a) == identity(e)), None)
        self.specs.append(k.PatternExpression(inputs, type_))
        self.expressions.append(g.Expression(readable(e), type_, column, Bound(e, attributes)))
        self.typed[number] = e
        return number

    def _typed(self, read: MatchRead) -> Jvm:
        c = self._c
        leaf = module(c.plans, "LocalRelation").apply(c.seq(self._leaf))
        project = c.plans.Project(c.seq([c.alias(read.expression, "value")]), leaf)
        analysed = Determinism(c, self._refuse).pinned(c.dataset(project).queryExecution().analyzed())
        found = (find(e, _is_aggregate) for e in items(analysed.expressions()))
        if (other := next((e for e in found if e is not None), None)) is not None:
            self._refuse(
                other,
                "only aggregates of Spark can be used in patterns",
                hint="max(A.x)",
                reason="udf-aggregate-in-pattern",
            )
        return items(analysed.projectList())[0].child()

    def _leaf_of(self, number: int, each: k.Input) -> Jvm:
        """Return an attribute for an input, under the name that expressions use; aggregates get their type later."""
        types = self._c.jvm.org.apache.spark.sql.types
        match each:
            case k.Navigate(column=column):
                kind_ = self._columns[column].dataType()
            case k.Classify():
                kind_ = module(types, "StringType")
            case k.MatchNumber():
                kind_ = module(types, "LongType")
            case k.PatternAggregate():
                kind_ = (
                    self._finals[number].dataType() if number in self._finals else module(types, "LongType")
                )
        value = module(self._c.expressions, "Literal").create(None, kind_)
        return self._c.alias(value, f"in{number}").toAttribute().withNullability(True)

    def _aggregate(self) -> None:
        """Determine the buffer attributes, the final expression and the type of every aggregate."""
        for number, each in enumerate(self._found.inputs):
            if not isinstance(each, k.PatternAggregate):
                continue
            function = self._kernel_function(each)
            if function is None:
                call = self._found.calls.get(each) or plain_call(self._c, each.kind)
                listed = replace(each, kind="list", function=each.function or each.kind)
                self._found.inputs[number] = listed
                element = self.typed[each.argument or 0].dataType()
                many, self._finals[number] = Folding(self._c, self._refuse).folded(call, element)
                self._buffers[number] = [many]
            else:
                self._buffers[number] = items(function.aggBufferAttributes())
                self._finals[number] = function.evaluateExpression()
            self._leaf[number] = self._leaf_of(number, each)
            if len(self._buffers[number]) == 1 and kind(self._finals[number]) == "AttributeReference":
                self._leaf[number] = self._buffers[number][0].withName(f"in{number}")

    def _kernel_function(self, each: k.PatternAggregate) -> Jvm | None:
        """Return Spark's function whose buffer the kernel fills; None if the kernel does not support it."""
        c = self._c
        if each.argument is None:
            return c.expressions.aggregate.Count(c.seq([module(c.expressions, "Literal").apply(1)]))
        if each.kind == "list":
            return None
        attribute = c.alias(self.typed[each.argument], "x").toAttribute()
        leaf = module(c.plans, "LocalRelation").apply(c.seq([attribute]))
        called = c.call(each.kind, [attribute])
        plan = c.plans.Aggregate(c.seq([]), c.seq([c.alias(called, "a")]), leaf, c.none())
        analysed = c.dataset(plan).queryExecution().analyzed()
        function = find(items(analysed.aggregateExpressions())[0], _is_aggregate).aggregateFunction()
        is_direct = kind(children_of(function)[0]) == "AttributeReference"
        return function if is_direct and self._is_kept(each.kind, attribute) else None

    def _is_kept(self, function: str, attribute: Jvm) -> bool:
        type_ = self._c.arrow_type(attribute.dataType())
        if function in ("sum", "avg"):
            return bool(
                pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
            )
        return function == "count" or not pa.types.is_nested(type_)


def _is_aggregate(e: Jvm) -> bool:
    return kind(e) == "AggregateExpression"


def _never_fails(e: Jvm) -> bool:
    return kind(e) in _NEVER_FAIL and all(_never_fails(c) for c in children_of(e))
