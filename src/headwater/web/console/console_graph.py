"""Layout of the dataflow graph: the positions of its nodes, and the points of its edges. Pure, and deterministic.

Nodes are in columns, left to right: a node is to the right of all nodes that it is computed from. Within a column nodes
are ordered so that few edges cross, and moved towards their neighbours. Only names and edges determine the layout:
changing metrics move nothing.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Kind = Literal["source", "topic", "view", "sink"]
KINDS: tuple[Kind, ...] = ("source", "topic", "view", "sink")

WIDTH, HEIGHT = 204, 94
"""Size of a node, in pixels."""
GAP_X, GAP_Y = 52, 20
LANE = 18
"""Height reserved for an edge that passes a column, in pixels."""
SWEEPS = 12
Point = tuple[float, float]


@dataclass(frozen=True)
class PlacedNode:
    """A node, with the position of its upper left corner."""

    id: str
    column: int
    x: float
    y: float


@dataclass(frozen=True)
class Picture:
    """The layout: nodes by column from the top, edges with the points on their way, and the total size."""

    nodes: tuple[PlacedNode, ...]
    edges: tuple[tuple[str, str, tuple[Point, ...]], ...]
    width: float
    height: float


def draw(kinds: Mapping[str, Kind], edges: Sequence[tuple[str, str]]) -> Picture:
    """Return the layout of nodes (id -> kind) and of the edges between them; edges with an unknown end are left out."""
    known = sorted({(a, b) for a, b in edges if a in kinds and b in kinds and a != b})
    if not kinds:
        return Picture((), (), 0.0, 0.0)
    columns = _columns(kinds, known)
    graph = _Graph(columns, known)
    graph.order()
    centres = graph.centres()
    nodes = tuple(
        PlacedNode(n, c, float(c * (WIDTH + GAP_X)), centres[n] - HEIGHT / 2)
        for c, column in enumerate(graph.columns)
        for n in column
        if n in kinds
    )
    drawn = tuple((a, b, tuple(_points(graph, centres, a, b))) for a, b in known if (a, b) in graph.paths)
    count = len(graph.columns)
    bottom = max(node.y + HEIGHT for node in nodes)
    return Picture(nodes, drawn, float(count * WIDTH + (count - 1) * GAP_X), bottom)


def _columns(kinds: Mapping[str, Kind], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the column of each node: right of all nodes that it is computed from, and no further left than its kind allows.
    Sinks without outgoing edges are in the last column. A cycle, which no declared graph has, is cut at some edge."""
    present = [kind for kind in KINDS if kind in kinds.values()]
    at = {name: present.index(kind) for name, kind in sorted(kinds.items())}
    for _ in range(len(kinds)):
        moved = False
        for a, b in edges:
            if at[b] <= at[a] < len(kinds) + len(KINDS):
                at[b] = at[a] + 1
                moved = True
        if not moved:
            break
    used = sorted(set(at.values()))
    at = {name: used.index(column) for name, column in at.items()}
    followed = {a for a, _ in edges}
    last = max(at.values())
    return {n: last if kinds[n] == "sink" and n not in followed else c for n, c in at.items()}


class _Graph:
    """Columns of nodes and lanes; a lane reserves the space of an edge that passes a column."""

    def __init__(self, at: Mapping[str, int], edges: Sequence[tuple[str, str]]) -> None:
        self.columns: list[list[str]] = [[] for _ in range(max(at.values()) + 1)]
        self.lanes: set[str] = set()
        self.paths: dict[tuple[str, str], list[str]] = {}
        self._before: dict[str, list[str]] = {}
        self._after: dict[str, list[str]] = {}
        self._nodes = set(at)
        for name, column in at.items():
            self.columns[column].append(name)
        for a, b in edges:
            if at[a] >= at[b]:
                continue
            path = [a]
            for column in range(at[a] + 1, at[b]):
                lane = f"{a}\x00{b}\x00{column}"
                self.lanes.add(lane)
                self.columns[column].append(lane)
                path.append(lane)
            path.append(b)
            self.paths[a, b] = path
            for left, right in pairwise(path):
                self._after.setdefault(left, []).append(right)
                self._before.setdefault(right, []).append(left)

    def order(self) -> None:
        """Reorder the columns to reduce edge crossings: sort each by the mean position of its neighbours, in
        alternating directions, and keep the best order found."""
        best, fewest = [list(c) for c in self.columns], self._crossings()
        for sweep in range(SWEEPS):
            if not fewest:
                break
            forward = sweep % 2 == 0
            indices = range(1, len(self.columns)) if forward else range(len(self.columns) - 2, -1, -1)
            for i in indices:
                neighbours = self.columns[i - 1 if forward else i + 1]
                place = {name: n for n, name in enumerate(neighbours)}
                near = self._before if forward else self._after
                own = {name: float(n) for n, name in enumerate(self.columns[i])}
                self.columns[i].sort(
                    key=lambda n: (_mean([place[m] for m in near.get(n, ())], own[n]), own[n])
                )
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(c) for c in self.columns], crossings
        self.columns = best

    def _crossings(self) -> int:
        total = 0
        for left, right in pairwise(self.columns):
            place = {name: n for n, name in enumerate(right)}
            seen: list[int] = []
            for a in left:
                ends = [place[b] for b in self._after.get(a, ())]
                total += sum(len(seen) - bisect_right(seen, end) for end in ends)
                for end in ends:
                    insort(seen, end)
        return total

    def centres(self) -> dict[str, float]:
        """Return the vertical centre of each node and lane: near the mean of its neighbours, without overlap in the column."""
        at: dict[str, float] = {}
        for column in self.columns:
            y = 0.0
            for name in column:
                at[name] = y + self._height(name) / 2
                y += self._height(name) + GAP_Y
        for sweep in range(SWEEPS):
            forward = sweep % 2 == 0
            for column in self.columns if forward else reversed(self.columns):
                wanted = []
                for name in column:
                    neighbours = self._before.get(name, ()) if forward else self._after.get(name, ())
                    neighbours = neighbours or [*self._before.get(name, ()), *self._after.get(name, ())]
                    wanted.append(_mean([at[n] for n in neighbours], at[name]))
                for name, y in zip(column, self._apart(column, wanted), strict=True):
                    at[name] = y
        self._straighten(at)
        top = min(y - self._height(n) / 2 for n, y in at.items() if n in self._nodes)
        return {name: round(y - top, 1) for name, y in at.items()}

    def _straighten(self, at: dict[str, float]) -> None:
        """Straighten almost horizontal edges if the column has room."""
        for column in self.columns[1:]:
            for i, name in enumerate(column):
                neighbours = self._before.get(name, ())
                if len(neighbours) != 1 or abs(at[neighbours[0]] - at[name]) > HEIGHT / 2:
                    continue
                wanted = at[neighbours[0]]
                above = column[i - 1] if i else None
                below = column[i + 1] if i + 1 < len(column) else None
                fits = above is None or wanted - at[above] >= self._distance(above, name)
                if fits and (below is None or at[below] - wanted >= self._distance(name, below)):
                    at[name] = wanted

    def _distance(self, above: str, below: str) -> float:
        return (self._height(above) + self._height(below)) / 2 + GAP_Y

    def _apart(self, column: Sequence[str], wanted: Sequence[float]) -> list[float]:
        """Return the positions closest to those wanted that keep the order and the gaps; neighbours that would overlap
        form a block."""
        offsets, y = [], 0.0
        for i, name in enumerate(column):
            if i:
                y += self._distance(column[i - 1], name)
            offsets.append(y)
        # the sum of the positions that its members want, and their number
        blocks: list[tuple[float, int]] = []
        for want, offset in zip(wanted, offsets, strict=True):
            block = (want - offset, 1)
            while blocks and blocks[-1][0] / blocks[-1][1] > block[0] / block[1]:
                total, count = blocks.pop()
                block = (block[0] + total, block[1] + count)
            blocks.append(block)
        starts = [total / count for total, count in blocks for _ in range(count)]
        return [start + offset for start, offset in zip(starts, offsets, strict=True)]

    def _height(self, name: str) -> float:
        return LANE if name in self.lanes else HEIGHT


def _points(graph: _Graph, centres: Mapping[str, float], a: str, b: str) -> list[Point]:
    path = graph.paths[a, b]
    column = next(i for i, names in enumerate(graph.columns) if a in names)
    found: list[Point] = []
    for step, name in enumerate(path):
        x, y = float((column + step) * (WIDTH + GAP_X)), centres[name]
        if name != a:
            found.append((x, y))
        if name != b:
            found.append((x + WIDTH, y))
    return found


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
