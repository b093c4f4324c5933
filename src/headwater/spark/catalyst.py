"""Spark's plans and expressions, seen from Python: the few calls into Catalyst that planning and evaluation need.

Everything here works on py4j handles to Scala objects (`Any` to the type checker) and keeps to Spark 4.3's names, so
that a change of them in a later Spark has one place. A call costs about 0.1 ms, and a plan takes thousands: what is asked of a
node is kept with its handle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Jvm = Any
"""A py4j handle."""
Refuse = Callable[..., NoReturn]
"""refuse(node, reason, hint=...): raises, underlining the part of the SQL that a Catalyst node came from."""

_ID = re.compile(r"#\d+L?")
_UTC = "UTC"
_UNKEPT = re.compile(r'(^|Type":|"type":)"(string collate|time\(|variant|geometry|geography)|"__COLLATIONS"')
"""In the JSON form of types, those that have an Arrow type, but not one that means the same: operators find equal strings
by their bytes, a variant becomes a struct, and of TIME Spark makes no relation."""


class Classes:
    """Packages, classes and static members of the JVM, each looked up once: to find one is a call for every part of its
    name."""

    def __init__(self, of: Jvm) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Jvm:
        from py4j.java_gateway import JavaClass, JavaPackage

        found = getattr(self._of, name)
        if isinstance(found, JavaPackage | JavaClass):
            found = Classes(found)
        setattr(self, name, found)
        return found

    def __call__(self, *args: Jvm) -> Jvm:
        return self._of(*args)


class UnkeptTypeError(TypeError):
    """Values of this type have no form in which views keep them."""


class Catalyst:
    """One session's view of Catalyst."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.jvm = Classes(spark._jvm)
        self.session: Jvm = spark._jsparkSession
        sql = self.jvm.org.apache.spark.sql
        self.expressions: Jvm = sql.catalyst.expressions
        self.plans: Jvm = sql.catalyst.plans.logical
        self._datasets = module(sql.classic, "Dataset")
        self._data_types = module(sql.types, "DataType")
        self._types: dict[str, pa.DataType] = {}
        self.matches: dict[int, Any] = {}
        """What MATCH_RECOGNIZE of plans look for, by the numbers that these have for them; see `matches`."""

    def seq(self, items: Iterable[Jvm]) -> Jvm:
        """A Scala Seq."""
        values = self.jvm.java.util.ArrayList()
        for item in items:
            values.add(item)
        return self.jvm.org.apache.spark.api.python.PythonUtils.toSeq(values)

    def none(self) -> Jvm:
        """Scala's None."""
        return self.jvm.scala.Option.empty()

    def struct_type(self, schema_json: str) -> Jvm:
        """A StructType of its JSON form."""
        return self.jvm.org.apache.spark.sql.types.DataType.fromJson(schema_json)

    def dataset(self, plan: Jvm) -> Jvm:
        """A Dataset of a logical plan, which analyses it."""
        return self._datasets.ofRows(self.session, plan)

    def rule(self, name: str) -> Jvm:
        """An optimizer rule, by the name of its object."""
        return module(self.jvm.org.apache.spark.sql.catalyst.optimizer, name)

    def arrow_type(self, data_type: Jvm) -> pa.DataType:
        """The Arrow type of a Spark type; UnkeptTypeError if it has none."""
        text = data_type.json()
        if text not in self._types:
            from pyspark.errors import PySparkException
            from pyspark.sql.pandas.types import to_arrow_type
            from pyspark.sql.types import _parse_datatype_json_string

            if _UNKEPT.search(text):
                raise UnkeptTypeError(str(data_type.catalogString()))
            try:
                kind = to_arrow_type(_parse_datatype_json_string(text), timezone=_UTC)
            except (PySparkException, TypeError, ValueError) as error:
                raise UnkeptTypeError(str(data_type.catalogString())) from error
            self._types[text] = plain_type(kind)
        return self._types[text]

    def arrow_schema(self, attributes: Sequence[Jvm]) -> pa.Schema:
        """The Arrow schema of a row of attributes; names may repeat."""
        return pa.schema([pa.field(a.name(), self.arrow_type(a.dataType())) for a in attributes])

    def alias(self, expression: Jvm, name: str, like: Jvm | None = None) -> Jvm:
        """A named expression; `like` gives it the identity of another attribute."""
        identity = like.exprId() if like is not None else self.expressions.NamedExpression.newExprId()
        empty = self.seq([])
        return self.expressions.Alias(expression, name, identity, empty, self.none(), empty)

    def cast(self, expression: Jvm, data_type: Jvm) -> Jvm:
        """The expression as another type; itself where it has that type, whatever each says of nulls inside values."""
        if self._data_types.equalsIgnoreNullability(expression.dataType(), data_type):
            return expression
        ansi = module(self.expressions, "EvalMode").fromBoolean(True)
        return self.expressions.Cast(expression, data_type, self.none(), ansi)

    def call(self, name: str, arguments: Sequence[Jvm]) -> Jvm:
        """A call of a function of Spark's, still to be analysed."""
        none, analysis = self.none(), self.jvm.org.apache.spark.sql.catalyst.analysis
        return analysis.UnresolvedFunction(
            self.seq([name]), self.seq(arguments), False, none, none, self.seq([]), False
        )

    def variable(self, *names: str) -> Jvm:
        """The argument of a lambda, or a field of it, still to be analysed."""
        return self.expressions.UnresolvedNamedLambdaVariable(self.seq(names))

    def lambda_of(self, body: Jvm, *arguments: str) -> Jvm:
        """A lambda, still to be analysed."""
        return self.expressions.LambdaFunction(body, self.seq(self.variable(a) for a in arguments), False)

    def written(self, text: str, parts: Mapping[str, Jvm]) -> Jvm:
        """An expression as SQL has it, with others in place of names; still to be analysed."""
        parser, changes = self.session.sessionState().sqlParser(), self.jvm.java.util.HashMap()
        for name, part in parts.items():
            changes.put(parser.parseExpression(name), part)
        # a map of Scala is a partial function, which is what its trees are transformed by
        rule = self.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(changes)
        return parser.parseExpression(text).transformUp(rule)

    def rewritten(self, node: Jvm, change: Callable[[Jvm], Jvm | None]) -> Jvm:
        """A tree with every node for which `change` gives another one replaced, from the leaves up."""
        below = children_of(node)
        changed = [self.rewritten(c, change) for c in below]
        if any(a is not b for a, b in zip(below, changed, strict=True)):
            node = node.withNewChildren(self.seq(changed))
        replacement = change(node)
        return node if replacement is None else replacement


def module(package: Jvm, name: str) -> Jvm:
    """A Scala object, by the name of its class."""
    return getattr(getattr(package, name + "$"), "MODULE$")


def conjuncts(condition: Jvm) -> Iterator[Jvm]:
    """What must all hold for a condition to."""
    if kind(condition) != "And":
        yield condition
        return
    for child in children_of(condition):
        yield from conjuncts(child)


def items(seq: Jvm) -> list[Jvm]:
    """The elements of a Scala Seq."""
    return [seq.apply(i) for i in range(seq.size())]


def children_of(node: Jvm) -> list[Jvm]:
    """The nodes right below one of a plan or an expression."""
    found: list[Jvm] = _kept(node, "children", lambda: items(node.children()))
    return [*found]


def output_of(plan: Jvm) -> list[Jvm]:
    """The columns of a plan."""
    found: list[Jvm] = _kept(plan, "output", lambda: items(plan.output()))
    return [*found]


def option(value: Jvm) -> Jvm | None:
    """What a Scala Option holds, or None."""
    return value.get() if value.isDefined() else None


def kind(node: Jvm) -> str:
    """The name of a node's class: `Project`, `EqualTo`."""
    name: str = _kept(node, "kind", lambda: node.getClass().getSimpleName().rstrip("$"))
    return name


def identity(attribute: Jvm) -> int:
    """The number that tells an attribute from all others of its name."""
    number: int = _kept(attribute, "identity", lambda: attribute.exprId().id())
    return number


def readable(node: Jvm) -> str:
    """An expression or plan as text for people, without the numbers that change from one analysis to the next."""
    return _ID.sub("", node.toString()).strip()


def find(node: Jvm, found: Callable[[Jvm], bool]) -> Jvm:
    """The first node of an expression tree, from the top, for which `found` is true, or None."""
    if found(node):
        return node
    for child in children_of(node):
        if (hit := find(child, found)) is not None:
            return hit
    return None


def find_all(node: Jvm, found: Callable[[Jvm], bool]) -> list[Jvm]:
    """The nodes of an expression tree for which `found` is true, and which lie in no other such."""
    if found(node):
        return [node]
    return [hit for child in children_of(node) for hit in find_all(child, found)]


def kinds_in(expressions: Iterable[Jvm]) -> set[str]:
    """The kinds of all nodes of expression trees.

    Not told from their text: Spark cuts what it prints after 25 parts, and quotes no strings.
    """
    found: set[str] = set()
    for expression in expressions:
        found.add(kind(expression))
        found |= kinds_in(children_of(expression))
    return found


class Numbers:
    """A number for each expression, the same for those that mean the same."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[Jvm, int]]] = {}
        self._next = 0

    def of(self, expression: Jvm) -> int:
        """The number of an expression, from 0 in the order that they are met."""
        alike = self._known.setdefault(expression.semanticHash(), [])
        for known, number in alike:
            if known.semanticEquals(expression):
                return number
        alike.append((expression, self._next))
        self._next += 1
        return self._next - 1


def is_orderable(catalyst: Catalyst, expression: Jvm) -> bool:
    """Whether an expression's values have an order: maps have none, nor what holds one."""
    rows = module(catalyst.expressions, "RowOrdering")
    return bool(rows.isOrderable(catalyst.seq([expression])))


def _kept(handle: Jvm, fact: str, ask: Callable[[], Any]) -> Any:
    """A fact of a node, asked once and kept with its handle: nodes never change."""
    kept = handle.__dict__
    name = "_headwater_" + fact
    if name not in kept:
        kept[name] = ask()
    return kept[name]


def collected(frame: DataFrame) -> pa.Table:
    """The rows of a DataFrame, run now, in types that say of nulls inside values what Spark does.

    Not `toArrow`, which fails where a struct is NULL whose fields never are.
    """
    batches = frame._collect_as_arrow(empty_list_if_zero_records=False)  # type: ignore[operator]
    return pa.Table.from_batches(batches)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """A type with every nested field nullable and of the usual name, so that equal data has equal types."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(pa.field("element", plain_type(kind.value_type)))
    if types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(f.name, plain_type(f.type)) for f in kind])
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    return kind


def spark_schema_json(schema: pa.Schema, metadata: Sequence[dict[str, Any]] | None = None) -> str:
    """A Spark schema of an Arrow one, every column nullable, with metadata per column."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = from_arrow_schema(schema).jsonValue()["fields"]
    for i, field in enumerate(fields):
        field["nullable"] = True
        field["metadata"] = metadata[i] if metadata else {}
    return json.dumps({"type": "struct", "fields": fields})
