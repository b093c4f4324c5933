"""Consumer groups in memory: live members, the assignment of partitions, and the present owners until they release them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.log.group_assignment import share_out


@dataclass
class Group:
    """A group of one topic. `owners` may read and commit now; `wanted` is the assignment that owners release partitions for."""

    partitions: int
    generation: int = 0
    owners: dict[int, str] = field(default_factory=dict)
    wanted: dict[int, str] = field(default_factory=dict)
    alive_until_ms: dict[str, float] = field(default_factory=dict)

    def beat(self, member: str, now_ms: float, timeout_ms: float) -> None:
        """Record that this member is alive; members without a beat for longer than their timeout are removed."""
        before = set(self.alive_until_ms)
        self.alive_until_ms[member] = now_ms + timeout_ms
        self.alive_until_ms = {name: until for name, until in self.alive_until_ms.items() if until >= now_ms}
        if set(self.alive_until_ms) != before:
            self._share_out()

    def release(self, member: str, partitions: Sequence[int]) -> None:
        """Hand over the member's partitions that are assigned to another member."""
        for partition in partitions:
            if self.owners.get(partition) == member:
                self.owners[partition] = self.wanted[partition]

    def leave(self, member: str) -> None:
        """Remove a member."""
        if self.alive_until_ms.pop(member, None) is not None:
            self._share_out()

    def owns(self, member: str, partition: int) -> bool:
        """Whether a member may read and commit a partition now."""
        return self.owners.get(partition) == member

    def _share_out(self) -> None:
        """Reassign the partitions to the present members; a partition without a live owner changes hands at once."""
        self.generation += 1
        self.wanted = share_out(self.partitions, self.alive_until_ms, self.wanted)
        self.owners = {
            partition: self.owners[partition] if self.owners.get(partition) in self.alive_until_ms else wanted
            for partition, wanted in self.wanted.items()
        }
