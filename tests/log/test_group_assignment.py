"""Partitions are shared out evenly, and as few as possible change hands."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headwater.log.group_assignment import share_out

members = st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8)
counts = st.integers(0, 20)
currents = st.dictionaries(st.integers(0, 25), st.sampled_from("abcdefghxyz"))


@given(counts, members, currents)
def test_every_partition_has_one_member(partitions: int, names: list[str], current: dict[int, str]) -> None:
    shared = share_out(partitions, names, current)
    assert list(shared) == (list(range(partitions)) if names else [])
    assert set(shared.values()) <= set(names)


@given(counts, members, currents)
def test_no_member_has_two_more_than_another(
    partitions: int, names: list[str], current: dict[int, str]
) -> None:
    sizes = Counter(dict.fromkeys(names, 0))
    sizes.update(share_out(partitions, names, current).values())
    assert not names or max(sizes.values()) - min(sizes.values()) <= 1


@given(counts, members, currents)
def test_no_balanced_sharing_keeps_more(partitions: int, names: list[str], current: dict[int, str]) -> None:
    if not names:
        return
    shared = share_out(partitions, names, current)
    held = Counter(current[p] for p in range(partitions) if current.get(p) in names)
    share, extra = divmod(partitions, len(names))
    best = sum(min(held[name], share) for name in names) + min(
        extra, sum(held[name] > share for name in names)
    )
    assert sum(shared[p] == current.get(p) for p in range(partitions)) == best


@given(counts, members, currents)
def test_a_balanced_sharing_stays(partitions: int, names: list[str], current: dict[int, str]) -> None:
    shared = share_out(partitions, names, current)
    assert share_out(partitions, names, shared) == shared


@given(counts, st.permutations("abcd"), currents)
def test_the_order_of_members_does_not_matter(
    partitions: int, names: list[str], current: dict[int, str]
) -> None:
    assert share_out(partitions, names, current) == share_out(partitions, sorted(names), current)


def test_members_beyond_the_partitions_stand_by() -> None:
    assert share_out(2, ["c", "a", "b"], {}) == {0: "a", 1: "b"}


def test_a_newcomer_takes_one_of_four_from_two() -> None:
    before = share_out(4, ["a", "b"], {})
    after = share_out(4, ["a", "b", "c"], before)
    assert sum(before[p] != after[p] for p in range(4)) == 1
