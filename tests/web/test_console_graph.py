"""Where the nodes of the dataflow are drawn."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from headwater.web.console.console_graph import GAP_Y, HEIGHT, KINDS, WIDTH, Kind, Picture, draw

SHOP: dict[str, Kind] = {
    "source:shop": "source",
    "topic:orders": "topic",
    "topic:customers": "topic",
    "topic:clicks": "topic",
    "view:revenue": "view",
    "view:best": "view",
    "view:per_minute": "view",
    "sink:cache": "sink",
    "sink:lake": "sink",
}
EDGES = [
    ("source:shop", "topic:orders"),
    ("source:shop", "topic:customers"),
    ("topic:orders", "view:revenue"),
    ("topic:customers", "view:revenue"),
    ("view:revenue", "view:best"),
    ("topic:clicks", "view:per_minute"),
    ("view:best", "sink:cache"),
    ("view:revenue", "sink:lake"),
]


def columns(picture: Picture) -> dict[str, int]:
    return {node.id: node.column for node in picture.nodes}


def test_nothing_is_drawn_of_nothing() -> None:
    assert draw({}, []) == Picture((), (), 0.0, 0.0)


def test_a_node_is_right_of_what_it_is_made_from_and_sinks_come_last() -> None:
    assert columns(draw(SHOP, EDGES)) == {
        "source:shop": 0,
        "topic:orders": 1,
        "topic:customers": 1,
        "topic:clicks": 1,
        "view:revenue": 2,
        "view:per_minute": 2,
        "view:best": 3,
        "sink:cache": 4,
        "sink:lake": 4,
    }


def test_without_sources_topics_are_the_first_column() -> None:
    picture = draw({"topic:a": "topic", "view:v": "view"}, [("topic:a", "view:v")])
    assert columns(picture) == {"topic:a": 0, "view:v": 1}
    (edge,) = picture.edges
    (_, y), (x, below) = edge[2]
    assert y == below, "a single edge is level"
    assert x == picture.nodes[1].x


def test_a_topic_that_a_sink_fills_is_right_of_it() -> None:
    kinds: dict[str, Kind] = {
        "topic:a": "topic",
        "view:v": "view",
        "sink:s": "sink",
        "topic:b": "topic",
        "view:w": "view",
    }
    path = [("topic:a", "view:v"), ("view:v", "sink:s"), ("sink:s", "topic:b"), ("topic:b", "view:w")]
    assert columns(draw(kinds, path)) == {"topic:a": 0, "view:v": 1, "sink:s": 2, "topic:b": 3, "view:w": 4}


def test_an_edge_that_passes_a_column_goes_through_no_node_of_it() -> None:
    picture = draw(SHOP, EDGES)
    (points,) = [points for a, b, points in picture.edges if (a, b) == ("view:revenue", "sink:lake")]
    passed = [node for node in picture.nodes if node.column == 3]
    middle = [y for x, y in points if passed[0].x <= x <= passed[0].x + WIDTH]
    assert len(middle) == 2
    assert all(not node.y <= y <= node.y + HEIGHT for node in passed for y in middle)


def test_edges_that_need_not_cross_do_not() -> None:
    kinds: dict[str, Kind] = {f"topic:{n}": "topic" for n in range(5)}
    kinds |= {f"view:{n}": "view" for n in range(5)}
    picture = draw(kinds, [(f"topic:{n}", f"view:{4 - n}") for n in range(5)])
    at = {node.id: node.y for node in picture.nodes}
    assert all(at[f"topic:{n}"] == at[f"view:{4 - n}"] for n in range(5))


def test_a_circle_is_drawn_all_the_same() -> None:
    kinds: dict[str, Kind] = {"view:a": "view", "view:b": "view"}
    assert len(draw(kinds, [("view:a", "view:b"), ("view:b", "view:a"), ("view:a", "view:a")]).nodes) == 2


@st.composite
def graphs(draw_: st.DrawFn) -> tuple[dict[str, Kind], list[tuple[str, str]]]:
    kinds = {f"{kind}:{n}": kind for kind in KINDS for n in range(draw_(st.integers(0, 5)))}
    names = list(kinds)
    pairs = [(a, b) for a, b in combinations(names, 2)]
    edges = draw_(st.lists(st.sampled_from(pairs), max_size=20)) if pairs else []
    return kinds, edges


@given(graphs())
def test_no_two_nodes_touch_and_the_same_graph_is_the_same_picture(
    graph: tuple[dict[str, Kind], list[tuple[str, str]]],
) -> None:
    kinds, edges = graph
    picture = draw(kinds, edges)
    assert {node.id for node in picture.nodes} == set(kinds)
    assert draw(dict(reversed(kinds.items())), edges[::-1]) == picture
    for column in {node.column for node in picture.nodes}:
        tops = sorted(node.y for node in picture.nodes if node.column == column)
        assert all(b - a >= HEIGHT + GAP_Y - 0.2 for a, b in pairwise(tops))
    assert all(0 <= node.y <= picture.height - HEIGHT + 0.2 for node in picture.nodes)
    at = columns(picture)
    assert all(at[a] < at[b] for a, b, _ in picture.edges)
