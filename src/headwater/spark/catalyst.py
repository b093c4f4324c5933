"""Access to Catalyst plans and expressions from Python: the few JVM calls that planning and evaluation need.

Everything here works on py4j handles to Scala objects (`Any` to the type checker) and follows the names of Spark 4.3, so
that a rename in a later Spark release is handled in one place. A py4j call costs about 0.1 ms, and a plan takes thousands
of them: facts read from a node are cached on its handle.
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
"""`refuse(node, reason, hint=...)` raises an error that underlines the part of the SQL from which a Catalyst node was
parsed."""

_ID = re.compile(r"#\d+L?")
_UTC = "UTC"
_UNKEPT = re.compile(r'(^|Type":|"type":)"(string collate|time\(|variant|geometry|geography)|"__COLLATIONS"')
"""Matches, in the JSON form of Spark types, the types whose Arrow type has a different meaning: operators compare strings
by their bytes and ignore collations, a variant would become a struct, and Spark creates no relation from TIME columns."""


class Classes:
    """Packages, classes and static members of the JVM, each looked up once: a lookup costs one call per part of the name."""

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
    """A Spark type whose values views cannot store."""


class Catalyst:
    """Factory for Catalyst objects within one Spark session."""

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
        """Specifications of the MATCH_RECOGNIZE clauses in plans, by the numbers that the plans use for them."""

    def seq(self, items: Iterable[Jvm]) -> Jvm:
        """Return the items as a Scala Seq."""
        values = self.jvm.java.util.ArrayList()
        for item in items:
            values.add(item)
        return self.jvm.org.apache.spark.api.python.PythonUtils.toSeq(values)

    def none(self) -> Jvm:
        """Scala's None."""
        return self.jvm.scala.Option.empty()

    def struct_type(self, schema_json: str) -> Jvm:
        """Return the StructType for its JSON form."""
        return self.jvm.org.apache.spark.sql.types.DataType.fromJson(schema_json)

    def dataset(self, plan: Jvm) -> Jvm:
        """Return a Dataset of a logical plan; creating it analyses the plan."""
        return self._datasets.ofRows(self.session, plan)

    def rule(self, name: str) -> Jvm:
        """Return an optimizer rule by the name of its Scala object."""
        return module(self.jvm.org.apache.spark.sql.catalyst.optimizer, name)

    def arrow_type(self, data_type: Jvm) -> pa.DataType:
        """Return the Arrow type of a Spark type; UnkeptTypeError if views cannot store values of the type."""
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
        """Return the Arrow schema of a row of attributes; names may repeat."""
        return pa.schema([pa.field(a.name(), self.arrow_type(a.dataType())) for a in attributes])

    def alias(self, expression: Jvm, name: str, like: Jvm | None = None) -> Jvm:
        """Return a named expression; with `like`, the result takes the expression ID of that attribute."""
        identity = like.exprId() if like is not None else self.expressions.NamedExpression.newExprId()
        empty = self.seq([])
        return self.expressions.Alias(expression, name, identity, empty, self.none(), empty)

    def cast(self, expression: Jvm, data_type: Jvm) -> Jvm:
        """Return the expression cast to a type, or the expression unchanged where the two types differ at most in
        nullability."""
        if self._data_types.equalsIgnoreNullability(expression.dataType(), data_type):
            return expression
        ansi = module(self.expressions, "EvalMode").fromBoolean(True)
        return self.expressions.Cast(expression, data_type, self.none(), ansi)

    def call(self, name: str, arguments: Sequence[Jvm]) -> Jvm:
        """Return an unresolved call of a Spark function."""
        none, analysis = self.none(), self.jvm.org.apache.spark.sql.catalyst.analysis
        return analysis.UnresolvedFunction(
            self.seq([name]), self.seq(arguments), False, none, none, self.seq([]), False
        )

    def variable(self, *names: str) -> Jvm:
        """Return an unresolved reference to a lambda argument, or to a field of the argument."""
        return self.expressions.UnresolvedNamedLambdaVariable(self.seq(names))

    def lambda_of(self, body: Jvm, *arguments: str) -> Jvm:
        """Return an unresolved lambda."""
        return self.expressions.LambdaFunction(body, self.seq(self.variable(a) for a in arguments), False)

    def written(self, text: str, parts: Mapping[str, Jvm]) -> Jvm:
        """Return an unresolved expression parsed from SQL text, with the names in `parts` replaced by the given
        expressions."""
        parser, changes = self.session.sessionState().sqlParser(), self.jvm.java.util.HashMap()
        for name, part in parts.items():
            changes.put(parser.parseExpression(name), part)
        # a Scala Map is a PartialFunction, which is the type that transformUp takes
        rule = self.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(changes)
        return parser.parseExpression(text).transformUp(rule)

    def rewritten(self, node: Jvm, change: Callable[[Jvm], Jvm | None]) -> Jvm:
        """Return a tree in which every node for which `change` returns a replacement is replaced, bottom-up."""
        below = children_of(node)
        changed = [self.rewritten(c, change) for c in below]
        if any(a is not b for a, b in zip(below, changed, strict=True)):
            node = node.withNewChildren(self.seq(changed))
        replacement = change(node)
        return node if replacement is None else replacement


def module(package: Jvm, name: str) -> Jvm:
    """Return a Scala object (singleton) by its class name."""
    return getattr(getattr(package, name + "$"), "MODULE$")


def conjuncts(condition: Jvm) -> Iterator[Jvm]:
    """Yield the operands of a condition's top-level ANDs."""
    if kind(condition) != "And":
        yield condition
        return
    for child in children_of(condition):
        yield from conjuncts(child)


def items(seq: Jvm) -> list[Jvm]:
    """The elements of a Scala Seq."""
    return [seq.apply(i) for i in range(seq.size())]


def children_of(node: Jvm) -> list[Jvm]:
    """Return the direct children of a plan or expression node."""
    found: list[Jvm] = _kept(node, "children", lambda: items(node.children()))
    return [*found]


def output_of(plan: Jvm) -> list[Jvm]:
    """Return the output attributes of a plan."""
    found: list[Jvm] = _kept(plan, "output", lambda: items(plan.output()))
    return [*found]


def option(value: Jvm) -> Jvm | None:
    """Return the value of a Scala Option, or None."""
    return value.get() if value.isDefined() else None


def kind(node: Jvm) -> str:
    """Return the simple class name of a node, such as `Project` or `EqualTo`."""
    name: str = _kept(node, "kind", lambda: node.getClass().getSimpleName().rstrip("$"))
    return name


def identity(attribute: Jvm) -> int:
    """Return the expression ID of an attribute, which distinguishes attributes of the same name."""
    number: int = _kept(attribute, "identity", lambda: attribute.exprId().id())
    return number


def readable(node: Jvm) -> str:
    """Return an expression or plan as text for people, without expression IDs, which differ between analyses."""
    return _ID.sub("", node.toString()).strip()


def find(node: Jvm, found: Callable[[Jvm], bool]) -> Jvm:
    """Return the first node of an expression tree, in pre-order, for which `found` is true, or None."""
    if found(node):
        return node
    for child in children_of(node):
        if (hit := find(child, found)) is not None:
            return hit
    return None


def find_all(node: Jvm, found: Callable[[Jvm], bool]) -> list[Jvm]:
    """Return the topmost nodes of an expression tree for which `found` is true: nodes below a match are not searched."""
    if found(node):
        return [node]
    return [hit for child in children_of(node) for hit in find_all(child, found)]


def kinds_in(expressions: Iterable[Jvm]) -> set[str]:
    """Return the node kinds that occur anywhere in the expression trees.

    The kinds are not read from the printed text, because Spark truncates it after 25 parts and does not quote strings.
    """
    found: set[str] = set()
    for expression in expressions:
        found.add(kind(expression))
        found |= kinds_in(children_of(expression))
    return found


class Numbers:
    """Assigns a number to each expression; semantically equal expressions get the same number."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[Jvm, int]]] = {}
        self._next = 0

    def of(self, expression: Jvm) -> int:
        """Return the number of an expression; numbers start at 0, in the order of first use."""
        alike = self._known.setdefault(expression.semanticHash(), [])
        for known, number in alike:
            if known.semanticEquals(expression):
                return number
        alike.append((expression, self._next))
        self._next += 1
        return self._next - 1


def is_orderable(catalyst: Catalyst, expression: Jvm) -> bool:
    """Whether values of an expression can be ordered: maps, and types that contain maps, cannot."""
    rows = module(catalyst.expressions, "RowOrdering")
    return bool(rows.isOrderable(catalyst.seq([expression])))


def _kept(handle: Jvm, fact: str, ask: Callable[[], Any]) -> Any:
    """Return a fact about a node, cached on its handle: Catalyst nodes are immutable."""
    kept = handle.__dict__
    name = "_headwater_" + fact
    if name not in kept:
        kept[name] = ask()
    return kept[name]


def collected(frame: DataFrame) -> pa.Table:
    """Run a DataFrame and return its rows, with the nullability of nested fields that Spark reports.

    `toArrow` is not used because it fails on a NULL struct whose fields are declared NOT NULL.
    """
    batches = frame._collect_as_arrow(empty_list_if_zero_records=False)  # type: ignore[operator]
    return pa.Table.from_batches(batches)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with every nested field nullable and conventionally named, so that equal data has equal types."""
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
    """Return the Spark schema, as JSON, of an Arrow schema, with every column nullable and with metadata per column."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = from_arrow_schema(schema).jsonValue()["fields"]
    for i, field in enumerate(fields):
        field["nullable"] = True
        field["metadata"] = metadata[i] if metadata else {}
    return json.dumps({"type": "struct", "fields": fields})
