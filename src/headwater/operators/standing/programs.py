"""A query as rows of numbers: leaves and nodes with weights, and the sets of atoms that it can be looked for by.

A node holds if the weights of its children that hold sum up to its least or more. All of `must` with some of `should`
is such a sum: what must hold weighs more than all that should, and what must not weighs more than everything else,
downwards. So queries of every form are evaluated by the same few vector operations, from the deepest nodes up.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from headwater.errors import UsageError
from headwater.operators.standing.atoms import Atoms
from headwater.operators.standing.nodes import Clauses, Holds, Leaf, Node, Phrase, Query, Range, selects

CHOICES_MAX = 8
"""Of how many sets of atoms the best one is chosen as documents pass."""


@dataclass
class Program:
    """A query in numbers. Node 0 is its root; the parent of a node has a smaller number."""

    leaf_atom: list[int] = field(default_factory=list)
    leaf_parent: list[int] = field(default_factory=list)
    leaf_weight: list[int] = field(default_factory=list)
    leaf_boost: list[float] = field(default_factory=list)
    """0 where a leaf neither scores nor highlights: its boost is, or it lies under a NOT."""
    node_parent: list[int] = field(default_factory=list)
    node_weight: list[int] = field(default_factory=list)
    node_least: list[int] = field(default_factory=list)
    node_depth: list[int] = field(default_factory=list)
    choices: list[tuple[int, ...]] | None = None
    """Sets of atoms; a document that meets the query has one of each set at least. None if there is no set: it scans."""
    payload: Hashable | None = None


def compiled(query: Query, atoms: Atoms) -> Program:
    """The program of a query; its atoms are added to those that are there."""
    node, payload = _apart(query.node)
    program = Program(payload=payload)
    root = node if isinstance(node, Clauses) else Clauses(must=(node,))
    choices = _add(program, atoms, root, 0, 0, 0, scores=True)
    if choices is not None:
        costs = {choice: _cost(atoms, choice) for choice in choices}
        choices = sorted(costs, key=lambda choice: costs[choice])[:CHOICES_MAX]
    program.choices = choices
    return program


def _apart(node: Node) -> tuple[Node, Hashable | None]:
    """A query's tree without its predicate, and the predicate."""
    if isinstance(node, Holds):
        return Clauses(), node.payload
    if isinstance(node, Clauses) and node.must and isinstance(node.must[-1], Holds) and not node.should:
        return Clauses(node.must[:-1], (), node.must_not), node.must[-1].payload
    return node, None


def _add(
    program: Program, atoms: Atoms, node: Clauses, parent: int, weight: int, depth: int, *, scores: bool
) -> list[tuple[int, ...]] | None:
    """Add a node and what is below it; the sets that it can be looked for by."""
    heavy = len(node.should) + 1
    all_of = heavy * len(node.must)
    me = len(program.node_parent)
    program.node_parent.append(parent)
    program.node_weight.append(weight)
    program.node_least.append(all_of + (1 if node.should and not node.must else 0))
    program.node_depth.append(depth)
    required: list[tuple[int, ...]] = []
    either = []
    for child in node.must:
        required += _child(program, atoms, child, me, heavy, depth, scores=scores) or []
    for child in node.should:
        either.append(_child(program, atoms, child, me, 1, depth, scores=scores))
    for child in node.must_not:
        _child(program, atoms, child, me, -(all_of + heavy), depth, scores=False)
    return (required or None) if node.must else _either(atoms, either)


def _either(atoms: Atoms, children: list[list[tuple[int, ...]] | None]) -> list[tuple[int, ...]] | None:
    """Sets for one of several: the union of a set of each. Of all combinations those are kept that take the best of each, and the
    first of each, the second and so on, which are the same words where a query is asked of several fields."""
    known = [sets for sets in children if sets]
    if not known or len(known) < len(children):
        return None
    combined = [[min(sets, key=lambda choice: _cost(atoms, choice)) for sets in known]]
    longest = min(max(map(len, known)), CHOICES_MAX)
    combined += [[sets[min(turn, len(sets) - 1)] for sets in known] for turn in range(longest)]
    return list(dict.fromkeys(tuple(sorted({atom for choice in one for atom in choice})) for one in combined))


def _child(
    program: Program, atoms: Atoms, node: Node, parent: int, weight: int, depth: int, *, scores: bool
) -> list[tuple[int, ...]] | None:
    if isinstance(node, Clauses):
        return _add(program, atoms, node, parent, weight, depth + 1, scores=scores)
    if isinstance(node, Holds):
        raise UsageError("a predicate is a query by itself, or the last thing that must hold")
    atom = atoms.of(node)
    program.leaf_atom.append(atom)
    program.leaf_parent.append(parent)
    program.leaf_weight.append(weight)
    program.leaf_boost.append(node.boost if scores else 0.0)
    return _choices(atoms, node, atom)


def _choices(atoms: Atoms, leaf: Leaf, atom: int) -> list[tuple[int, ...]] | None:
    if not selects(leaf):
        return None
    if isinstance(leaf, Phrase):
        return [(term,) for term in dict.fromkeys(atoms.phrases[atom][0])]
    if isinstance(leaf, Range) and leaf.low > leaf.high:
        return [()]  # it is never met
    return [(atom,)]


def _cost(atoms: Atoms, choice: tuple[int, ...]) -> float:
    return sum(atoms.cost(atom) for atom in choice)
