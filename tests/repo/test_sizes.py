"""Sizes of classes and signatures: a class has few methods, a function few parameters.

Counted is what a class defines itself. What is larger is listed with the reason; what is no longer larger leaves the list.
"""

import ast
from collections.abc import Iterator

from tests.repo.tree import PACKAGE, parsed, sources

METHODS_MAX = 25
PARAMETERS_MAX = 6

PUBLIC = "public API: users call it with keywords, on one object"
PROTOCOL = "the log protocol, which is one interface"
BACKEND = "a backend: it has a method for each of the log protocol, most of them a line"
SUITE = "a contract suite: its methods are tests"
STAND_IN = "stands in for a class of as many methods"

LARGE_CLASSES = {
    "log/embedded/embedded_log.py:EmbeddedLog": BACKEND,
    "log/memory/memory_log.py:MemoryLog": BACKEND,
    "log/protocol.py:Log": PROTOCOL,
    "queues/message.py:Message": PUBLIC,
    "testing/contract/groups.py:GroupContract": SUITE,
    "testing/contract/maintenance.py:UpkeepContract": SUITE,
    "testing/contract/watermarks.py:TimeContract": SUITE,
    "testing/faults.py:FaultyStorage": STAND_IN,
    "testing/sinks/sink_contract.py:SinkContract": SUITE,
    "testing/source_contract.py:SourceContract": SUITE,
    "workspace.py:Workspace": PUBLIC,
}
LONG_SIGNATURES = {
    "catalog/definitions.py:define_topic": PUBLIC,
    "catalog/view_definitions.py:define_view": PUBLIC,
    "events/aggregate_store.py:Store.execute": PUBLIC,
    "events/aggregate_store.py:Store.execute_async": PUBLIC,
    "events/aggregates.py:Aggregate.__init__": PUBLIC,
    "log/embedded/embedded_log.py:EmbeddedLog.open": PUBLIC,
    "log/topic.py:Topic.read": PUBLIC,
    "workspace.py:Workspace.aggregate": PUBLIC,
    "workspace.py:Workspace.fold": PUBLIC,
    "workspace.py:open": PUBLIC,
}


def methods() -> Iterator[tuple[str, int]]:
    """Every class with the number of methods that it defines."""
    for path in sources():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef):
                defined = [
                    each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                yield f"{path.relative_to(PACKAGE).as_posix()}:{node.name}", len(defined)


def parameters() -> Iterator[tuple[str, int]]:
    """Every function and method with the number of parameters that a caller gives, but for commands of the command line."""
    for path in sources():
        place = path.relative_to(PACKAGE).as_posix()
        tree = parsed(path)
        owners = {
            id(f): node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for f in node.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_command(place, node):
                names = [
                    each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                ]
                owner = owners.get(id(node))
                given = len(names) - (names[:1] in (["self"], ["cls"]))
                yield f"{place}:{owner}.{node.name}" if owner else f"{place}:{node.name}", given


def is_command(place: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is a command, which has a parameter for each of its options."""
    return place.startswith("cli/commands/") and bool(node.decorator_list)


def test_a_class_has_few_methods() -> None:
    large = {name: count for name, count in methods() if count > METHODS_MAX}
    new = {name: count for name, count in large.items() if name not in LARGE_CLASSES}
    assert not new, (
        f"more than {METHODS_MAX} methods: divide what the class does among objects that it is made of"
    )
    assert set(LARGE_CLASSES) <= set(large), "no longer large: remove it from LARGE_CLASSES"


def test_a_function_has_few_parameters() -> None:
    long = {name: count for name, count in parameters() if count > PARAMETERS_MAX}
    new = {name: count for name, count in long.items() if name not in LONG_SIGNATURES}
    assert not new, f"more than {PARAMETERS_MAX} parameters: what belongs together is an object"
    assert set(LONG_SIGNATURES) <= set(long), "no longer long: remove it from LONG_SIGNATURES"
