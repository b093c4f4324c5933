"""Operators: each kind of graph node has its own file, and no other module asks of which kind a node is."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import get_args

import pytest

from headwater.engine.dataflow.operators.registry import KINDS
from headwater.operators import graph as g
from tests.repo.tree import PACKAGE, parsed, sources

GRAPH = "headwater.operators.graph"
NODES = {node.__name__ for node in (*get_args(g.Node), g.RowPattern)}
HOMES = (
    "engine/dataflow/operators/",  # the kinds
    "operators/graph",  # the nodes, and their stored text
    "plan/",  # what makes graphs of Spark's plans
)

# Sources, constants, maps and unions are the frame of every graph, in which a row is still a single row of a source.
FRAME = {"SourceNode", "Constant", "Map", "Union"}
EXCEPTIONS = {
    "engine/dataflow/output_keys.py:Close": "it passes on what is below it, as a Map does",
    "engine/deletion/retract.py:Close": "what waits is retracted by what is shown",
    "engine/row_errors/late_rows.py:Close": "the watermarks that a view waits for",
    "verify/recompute_matches.py:Percolate": "verification of standing queries alone",
    "views/explain_view.py:Close": "when rows are final is a line of its own",
}


def asked(tree: ast.Module) -> Iterator[str]:
    """The classes of nodes that a module names, unless it makes one or annotates something with it."""
    modules, classes = set(), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if f"{node.module}.{alias.name}" == GRAPH:
                    modules.add(alias.asname or alias.name)
                elif node.module == GRAPH:
                    classes[alias.asname or alias.name] = alias.name

    def named(node: ast.AST) -> str | None:
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in modules and name in NODES:
                return name
            case ast.Name(id=name) if classes.get(name) in NODES:
                return classes[name]
        return None

    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if (name := named(node)) is not None:
            yield name
        for field, value in ast.iter_fields(node):
            below = [
                each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)
            ]
            is_made = field == "func" and named(below[0]) is not None
            if field not in ("annotation", "returns") and not is_made:
                waiting += below


def test_every_node_has_a_kind() -> None:
    assert {cls.__name__ for cls in KINDS} == NODES


def test_no_other_module_asks_of_which_kind_a_node_is() -> None:
    found = defaultdict[str, set[str]](set)
    for path in sources():
        place = path.relative_to(PACKAGE).as_posix()
        if not place.startswith(HOMES):
            for name in asked(parsed(path)):
                if name not in FRAME:
                    found[f"{place}:{name}"].add(place)
    new = sorted(set(found) - set(EXCEPTIONS))
    assert not new, (
        f"{', '.join(new)}: ask kind_of(node), and say it in the operator's file: docs/contributing/add-an-operator.md"
    )
    assert set(EXCEPTIONS) <= set(found), "no longer asked: remove it from EXCEPTIONS"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("isinstance(node, g.Rank)", ["Rank"]),
        ("isinstance(node, g.Rank | g.Join)", ["Rank", "Join"]),
        ("match node:\n    case g.Rank(key=()): ...", ["Rank"]),
        ("KEPT = (g.Rank,)", ["Rank"]),
        ("type(node) is g.Rank", ["Rank"]),
        ("is_any(node, g.Rank).then()", ["Rank"]),
        ("node = g.Rank(below, ())", []),
        ("def rank(node: g.Rank) -> g.Rank: ...", []),
        ("isinstance(step, g.Filter)", []),
    ],
)
def test_asking_for_a_class_of_nodes_is_seen(code: str, found: list[str]) -> None:
    tree = ast.parse(f"from headwater.operators import graph as g\n{code}")
    assert sorted(asked(tree)) == sorted(found)


def test_a_class_that_is_imported_by_its_name_is_seen() -> None:
    tree = ast.parse("from headwater.operators.graph import Rank as Top\nisinstance(node, Top)")
    assert list(asked(tree)) == ["Rank"]
