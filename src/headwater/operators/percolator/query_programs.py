"""Queries compiled to rows of numbers: leaves and nodes with weights, and the sets of atoms by which each can be indexed.

A node holds if the sum of the weights of its children that hold reaches its threshold. All of `must` with some of
`should` is such a sum: a required child outweighs all optional ones, and a prohibited child has a negative weight that
outweighs everything else. So queries of every form are evaluated by the same few vector operations, from the deepest
nodes up.
"""

from __future__ import annotations

from collections.abc import Hashable

from headwater.core.errors import UsageError
from headwater.operators.percolator.query_nodes import (
    Clauses,
    Holds,
    Leaf,
    Node,
    ParsedQuery,
    Phrase,
    RangeQuery,
    Term,
    selects,
)
from headwater.operators.percolator.terms import Atoms

CHOICES_MAX = 8
"""Maximum number of alternative atom sets per query, from which the best is chosen as documents are counted."""

Choices = list[tuple[int, ...]] | None
"""Atom sets; a document that matches a node has at least one atom of each set. None: there is no set, the query scans."""


class Programs:
    """Compiled new queries in growing columns, which become a `QuerySegment` once there are enough.

    Node 0 of a query is its root; the parent of a node has a smaller number.
    """

    def __init__(self, atoms: Atoms) -> None:
        self._atoms = atoms
        self.numbers: list[int] = []
        self.leaf_at: list[int] = [0]
        self.leaf_atom: list[int] = []
        self.leaf_parent: list[int] = []
        self.leaf_weight: list[int] = []
        self.leaf_boost: list[float] = []
        """Boost of each leaf; 0 if the leaf neither scores nor highlights: its boost is 0, or it is under a NOT."""
        self.node_at: list[int] = [0]
        self.node_parent: list[int] = []
        self.node_weight: list[int] = []
        self.node_least: list[int] = []
        self.node_depth: list[int] = []
        self.choice_at: list[int] = [0]
        self.pick_at: list[int] = [0]
        self.pick_atom: list[int] = []

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, query: ParsedQuery) -> Hashable | None:
        """Add a query under a number, and register its atoms; return the payload of its predicate, or None."""
        node, payload = _apart(query.node)
        root = node if isinstance(node, Clauses) else Clauses((node,))
        try:
            choices = self._node(root, 0, 0, 0, scores=True)
        except UsageError:
            self._cut()
            raise
        if choices is not None:
            if len(choices) > CHOICES_MAX:
                costs = {choice: self._cost(choice) for choice in choices}
                choices = sorted(costs, key=lambda choice: costs[choice])[:CHOICES_MAX]
            for choice in choices:
                self.pick_atom += choice
                self.pick_at.append(len(self.pick_atom))
        self.choice_at.append(len(self.pick_at) - 1)
        self.leaf_at.append(len(self.leaf_atom))
        self.node_at.append(len(self.node_parent))
        self.numbers.append(number)
        return payload

    def _cut(self) -> None:
        """Undo the partial addition of a query."""
        for name, column in vars(self).items():
            part = name.partition("_")[0]
            if part in ("leaf", "node") and not name.endswith("_at"):
                del column[getattr(self, f"{part}_at")[-1] :]

    def _node(self, node: Clauses, parent: int, weight: int, depth: int, *, scores: bool) -> Choices:
        """Add a node and everything below it; return the sets by which it can be indexed."""
        must, should = node.must, node.should
        heavy = len(should) + 1
        all_of = heavy * len(must)
        me = len(self.node_parent) - self.node_at[-1]
        self.node_parent.append(parent)
        self.node_weight.append(weight)
        self.node_least.append(all_of + (1 if should and not must else 0))
        self.node_depth.append(depth)
        required: list[tuple[int, ...]] = []
        for child in must:
            required += self._child(child, me, heavy, depth, scores=scores) or ()
        either = [self._child(child, me, 1, depth, scores=scores) for child in should]
        for child in node.must_not:
            self._child(child, me, -(all_of + heavy), depth, scores=False)
        return (required or None) if must else self._either(either)

    def _either(self, children: list[Choices]) -> Choices:
        """Return sets for a disjunction: each is the union of one set of every child.

        Of all combinations, those are kept that take the best set of each child, the first of each, the second of each
        and so on; the latter are the same words where a query searches several fields.
        """
        known = [sets for sets in children if sets]
        if not known or len(known) < len(children):
            return None
        longest = min(max(map(len, known)), CHOICES_MAX)
        if longest == 1:
            return [_union([sets[0] for sets in known])]
        combined = [[min(sets, key=self._cost) for sets in known]]
        combined += [[sets[min(turn, len(sets) - 1)] for sets in known] for turn in range(longest)]
        return list(dict.fromkeys(map(_union, combined)))

    def _child(self, node: Node, parent: int, weight: int, depth: int, *, scores: bool) -> Choices:
        if isinstance(node, Clauses):
            return self._node(node, parent, weight, depth + 1, scores=scores)
        if isinstance(node, Holds):
            raise UsageError("a predicate must be the whole query, or its last required clause")
        atom = self._atoms.of(node)
        self.leaf_atom.append(atom)
        self.leaf_parent.append(parent)
        self.leaf_weight.append(weight)
        self.leaf_boost.append(node.boost if scores else 0.0)
        return [(atom,)] if isinstance(node, Term) else self._choices(node, atom)

    def _choices(self, leaf: Leaf, atom: int) -> Choices:
        if not selects(leaf):
            return None
        if isinstance(leaf, Phrase):
            return [(term,) for term in dict.fromkeys(self._atoms.phrases[atom][0])]
        if isinstance(leaf, RangeQuery) and leaf.low > leaf.high:
            return [()]  # an empty range never matches
        return [(atom,)]

    def _cost(self, choice: tuple[int, ...]) -> float:
        return sum(map(self._atoms.cost, choice))


def _apart(node: Node) -> tuple[Node, Hashable | None]:
    """Split a query into its tree without the predicate, and the predicate."""
    if isinstance(node, Holds):
        return Clauses(), node.payload
    if isinstance(node, Clauses) and node.must and isinstance(node.must[-1], Holds) and not node.should:
        return Clauses(node.must[:-1], (), node.must_not), node.must[-1].payload
    return node, None


def _union(choices: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted({atom for choice in choices for atom in choice}))
