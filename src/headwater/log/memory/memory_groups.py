"""Consumer groups in memory: who is alive, who is to have which partition, and who has it until it is released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headwater.log.group_assignment import share_out


@dataclass
class Group:
    """A group of one topic. `owners` is who may read and commit now, `wanted` is who is to."""

    partitions: int
    generation: int = 0
    owners: dict[int, str] = field(default_factory=dict)
    wanted: dict[int, str] = field(default_factory=dict)
    alive_until_ms: dict[str, float] = field(default_factory=dict)

    def beat(self, member: str, now_ms: float, timeout_ms: float) -> None:
        """This member is alive; those who have been silent for longer than their timeout are not members any more."""
        before = set(self.alive_until_ms)
        self.alive_until_ms[member] = now_ms + timeout_ms
        self.alive_until_ms = {name: until for name, until in self.alive_until_ms.items() if until >= now_ms}
        if set(self.alive_until_ms) != before:
            self._share_out()

    def release(self, member: str, partitions: Sequence[int]) -> None:
        """Hand over those of a member's partitions that are wanted by another."""
        for partition in partitions:
            if self.owners.get(partition) == member:
                self.owners[partition] = self.wanted[partition]

    def leave(self, member: str) -> None:
        """This member is no longer one."""
        if self.alive_until_ms.pop(member, None) is not None:
            self._share_out()

    def owns(self, member: str, partition: int) -> bool:
        """Whether a member may read and commit a partition now."""
        return self.owners.get(partition) == member

    def _share_out(self) -> None:
        """Who is to have what among the members there are; what has no living owner changes hands at once."""
        self.generation += 1
        self.wanted = share_out(self.partitions, self.alive_until_ms, self.wanted)
        self.owners = {
            partition: self.owners[partition] if self.owners.get(partition) in self.alive_until_ms else wanted
            for partition, wanted in self.wanted.items()
        }
