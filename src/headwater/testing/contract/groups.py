"""Contract of consumer groups: each partition has one member at a time, and a member that lost a partition is fenced."""

from __future__ import annotations

from headwater.core.errors import FencedError
from headwater.log.protocol import CursorMove, GroupInfo
from headwater.testing.contract.contract_base import Bench, refused

TIMEOUT_MS = 1_000.0


class GroupContract(Bench):
    """Tests of `beat`, `release`, `leave` and `group`, and of cursor moves by members."""

    def join(self, *members: str, partitions: int = 4) -> GroupInfo:
        """Create a topic with a cursor, and let members join its group one after the other."""
        self.create("clicks", partitions=partitions)
        self.log.create_cursor("clicks", "mailer", dict.fromkeys(range(partitions), 0), False)
        return [self.beat(member) for member in members][-1]

    def beat(self, member: str) -> GroupInfo:
        """Send a heartbeat."""
        return self.log.beat("clicks", "mailer", member, TIMEOUT_MS)

    def settle(self, *members: str) -> GroupInfo:
        """Let every member release the partitions that another member is to have."""
        group = self.beat(members[0])
        for member in members:
            asked = [p for p, owner in group.owners.items() if owner == member and group.wanted[p] != member]
            group = self.log.release("clicks", "mailer", member, asked)
        return group

    def move(self, member: str, *partitions: int) -> None:
        """Commit positions as a member."""
        self.log.move_cursor(CursorMove("clicks", "mailer", dict.fromkeys(partitions, 7), member=member))

    def test_an_unknown_group_is_none(self) -> None:
        self.create("clicks")
        assert self.log.group("clicks", "mailer") is None

    def test_the_first_member_has_every_partition_at_once(self) -> None:
        group = self.join("a")
        assert group.members == ("a",)
        assert group.owners == group.wanted == dict.fromkeys(range(4), "a")
        assert self.log.group("clicks", "mailer") == group

    def test_beats_that_change_nothing_leave_the_generation(self) -> None:
        group = self.join("a", "b")
        self.clock.advance("500 ms")
        assert self.beat("a") == self.beat("b") == group

    def test_a_new_member_wants_its_share_and_waits_for_it(self) -> None:
        before = self.join("a")
        group = self.beat("b")
        assert group.generation > before.generation
        assert group.members == ("a", "b")
        assert sorted(group.wanted.values()) == ["a", "a", "b", "b"]
        assert set(group.owners.values()) == {"a"}

    def test_a_released_partition_goes_to_the_member_that_wants_it(self) -> None:
        self.join("a", "b")
        group = self.settle("a", "b")
        assert group.owners == group.wanted

    def test_only_partitions_that_another_wants_are_released(self) -> None:
        group = self.join("a", "b")
        kept = next(p for p, member in group.wanted.items() if member == "a")
        assert self.log.release("clicks", "mailer", "a", [kept]).owners[kept] == "a"

    def test_a_partition_is_released_by_its_owner_alone(self) -> None:
        group = self.join("a", "b")
        asked = next(p for p, member in group.wanted.items() if member == "b")
        assert self.log.release("clicks", "mailer", "b", [asked]).owners[asked] == "a"

    def test_sharing_moves_no_more_than_it_must(self) -> None:
        self.join("a", "b")
        before = self.settle("a", "b")
        after = self.beat("c")
        moved = [p for p in range(4) if before.wanted[p] != after.wanted[p]]
        assert len(moved) == 1

    def test_members_beyond_the_partitions_stand_by(self) -> None:
        group = self.join("a", "b", "c", partitions=2)
        assert len(group.members) == 3
        assert len(set(group.wanted.values())) == 2

    def test_a_silent_member_loses_its_partitions_at_once(self) -> None:
        self.join("a", "b")
        self.settle("a", "b")
        self.clock.advance("900 ms")
        self.beat("b")
        self.clock.advance("200 ms")
        group = self.beat("b")
        assert group.members == ("b",)
        assert group.owners == dict.fromkeys(range(4), "b")

    def test_a_member_is_not_silent_before_its_timeout(self) -> None:
        self.join("a", "b")
        self.clock.advance("1000 ms")
        assert self.beat("b").members == ("a", "b")

    def test_timeouts_are_each_members_own(self) -> None:
        self.join("a")
        self.log.beat("clicks", "mailer", "slow", 60_000)
        self.clock.advance("30 seconds")
        assert self.beat("b").members == ("b", "slow")

    def test_a_member_that_comes_back_is_a_new_one(self) -> None:
        self.join("a", "b")
        self.clock.advance("2 seconds")
        without = self.beat("b")
        again = self.beat("a")
        assert again.members == ("a", "b")
        assert again.generation > without.generation
        assert set(again.owners.values()) == {"b"}

    def test_a_member_that_leaves_gives_up_at_once(self) -> None:
        self.join("a", "b")
        self.settle("a", "b")
        self.log.leave("clicks", "mailer", "a")
        group = self.log.group("clicks", "mailer")
        assert group is not None
        assert group.owners == dict.fromkeys(range(4), "b")

    def test_a_group_that_everyone_left_has_no_owners(self) -> None:
        before = self.join("a")
        self.log.leave("clicks", "mailer", "a")
        group = self.log.group("clicks", "mailer")
        assert group is None or (group.members, group.owners, group.wanted) == ((), {}, {})
        assert self.beat("b").generation > before.generation

    def test_leaving_a_group_one_is_not_in_does_nothing(self) -> None:
        group = self.join("a")
        self.log.leave("clicks", "mailer", "stranger")
        self.log.leave("clicks", "nobody", "a")
        assert self.log.group("clicks", "mailer") == group

    def test_an_owner_may_commit(self) -> None:
        self.join("a")
        self.move("a", 0, 3)
        cursor = self.log.cursor("clicks", "mailer")
        assert cursor is not None
        assert cursor.positions == {0: 7, 1: 0, 2: 0, 3: 7}

    def test_an_owner_may_commit_what_another_already_wants(self) -> None:
        self.join("a", "b")
        self.move("a", 0, 1, 2, 3)

    def test_who_does_not_own_a_partition_is_fenced(self) -> None:
        self.join("a", "b")
        owners = self.settle("a", "b").owners
        with refused(FencedError):
            self.move("a", *owners)
        with refused(FencedError):
            self.move("stranger", 0)
        cursor = self.log.cursor("clicks", "mailer")
        assert cursor is not None
        assert set(cursor.positions.values()) == {0}

    def test_a_late_commit_of_a_lost_member_is_fenced(self) -> None:
        self.join("a", "b")
        self.clock.advance("2 seconds")
        self.beat("b")
        with refused(FencedError):
            self.move("a", 0)

    def test_a_commit_that_names_no_member_is_not_fenced(self) -> None:
        self.join("a")
        self.log.move_cursor(CursorMove("clicks", "mailer", {0: 3}))

    def test_groups_of_one_topic_do_not_know_each_other(self) -> None:
        self.join("a")
        other = self.log.beat("clicks", "auditor", "x", TIMEOUT_MS)
        assert set(other.owners.values()) == {"x"}

    def test_a_group_keeps_its_generation_over_reopening(self) -> None:
        before = self.join("a", "b")
        self.log = self.reopen(self.log)
        assert self.beat("b").generation >= before.generation
