"""Assigns partitions to the members of a group. Pure; both backends use it, so that they assign alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def share_out(partitions: int, members: Iterable[str], current: Mapping[int, str]) -> dict[int, str]:
    """Return partition -> member, for partitions 0 up to `partitions`; empty if there are no members.

    Balanced: no member has two more than another; members beyond the number of partitions get none. Sticky: each member keeps
    as many of its `current` partitions as balance allows, lowest partitions first, and no other balanced assignment moves fewer
    partitions. Deterministic: the order of `members` does not matter.
    """
    names = sorted(set(members))
    if not names:
        return {}
    held: dict[str, list[int]] = {name: [] for name in names}
    for partition in range(partitions):
        owner = current.get(partition)
        if owner in held:
            held[owner].append(partition)
    share, extra = divmod(partitions, len(names))
    # The members that own most get the larger shares, so that they need not give up a partition.
    larger = sorted(names, key=lambda name: (-len(held[name]), name))[:extra]
    quota = {name: share + (name in larger) for name in names}
    kept = {partition: name for name in names for partition in held[name][: quota[name]]}
    room = [name for name in names for _ in range(quota[name] - len(held[name]))]
    free = [partition for partition in range(partitions) if partition not in kept]
    return dict(sorted({**kept, **dict(zip(free, room, strict=True))}.items()))
