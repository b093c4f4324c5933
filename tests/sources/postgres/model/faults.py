"""Steps of a script that break something: the capturing process, the server, the connections, the slot."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sources.postgres.model.steps import Step
from tests.sources.postgres.model.world import SLOT, World


@dataclass(frozen=True)
class CrashCapture(Step):
    """The capturing process is killed; the next one starts when it is asked for something."""

    def apply(self, world: World) -> None:
        world.capture.close()

    def __str__(self) -> str:
        return "the capturing process is killed"


@dataclass(frozen=True)
class RestartServer(Step):
    """The server is stopped, or crashes, and is started again."""

    crashes: bool

    def apply(self, world: World) -> None:
        world.stop_server(crashes=self.crashes)
        world.server.start()

    def __str__(self) -> str:
        return f"the server {'crashes' if self.crashes else 'is stopped'} and is started again"


@dataclass(frozen=True)
class CutConnections(Step):
    """The server ends the connections of the capturing process."""

    def apply(self, world: World) -> None:
        world.run_alone(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'headwater%'"
        )

    def __str__(self) -> str:
        return "the server ends the connections of the capturing process"


@dataclass(frozen=True)
class DropSlot(Step):
    """The slot is dropped, and perhaps made again under its name."""

    is_made_again: bool
    kills: bool
    """The capturing process is killed before; else it finds its connection ended."""

    def apply(self, world: World) -> None:
        if not world.free_slot(kills=self.kills):
            return
        world.run_alone(f"SELECT pg_drop_replication_slot('{SLOT}')")
        world.model.lose("the slot was dropped")
        if self.is_made_again:
            world.run_alone(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")

    def __str__(self) -> str:
        running = "" if self.kills else " while the capturing process runs"
        return f"the slot is dropped{' and made again' if self.is_made_again else ''}{running}"


@dataclass(frozen=True)
class InvalidateSlot(Step):
    """The server removes what the slot would need of its log, for it is more than is kept for slots."""

    def apply(self, world: World) -> None:
        world.capture.close()
        kept = (
            "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
            "ALTER SYSTEM RESET max_slot_wal_keep_size",
        )
        for setting in kept:
            world.run_alone(setting)
            world.run_alone("SELECT pg_reload_conf()")
            if setting == kept[0]:
                for _ in range(3):
                    world.run_alone("SELECT pg_logical_emit_message(false, '', '')")
                    world.run_alone("SELECT pg_switch_wal()")
                world.run_alone("CHECKPOINT")
        status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = '{SLOT}'"
        if world.session.execute(status).fetchone() == ("lost",):
            world.model.lose("the slot was invalidated")

    def __str__(self) -> str:
        return "the server removes its log that the slot needs"


@dataclass(frozen=True)
class AdvanceSlot(Step):
    """The slot is moved to the end of the server's log, past changes that nobody has read."""

    def apply(self, world: World) -> None:
        if world.free_slot():
            world.run_alone(f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")
            world.model.lose("the slot was advanced")

    def __str__(self) -> str:
        return "the slot is advanced"


@dataclass(frozen=True)
class CopyServer(Step):
    """The server is stopped, its data directory is copied, and it is started again."""

    def apply(self, world: World) -> None:
        world.copy_data()
        world.model.copy()

    def __str__(self) -> str:
        return "the data directory is copied"


@dataclass(frozen=True)
class SetServerBack(Step):
    """The copy of the data directory is put in place of the newer one."""

    promotes: bool = False

    def apply(self, world: World) -> None:
        if world.restore_data(promotes=self.promotes):
            world.model.set_back()

    def __str__(self) -> str:
        timeline = ", and the server goes on on a new timeline" if self.promotes else ""
        return f"the data directory is replaced by the copy{timeline}"


@dataclass(frozen=True)
class PromoteServer(Step):
    """The server goes on on a new timeline, with everything that it has."""

    def apply(self, world: World) -> None:
        world.stop_server()
        world.promote()

    def __str__(self) -> str:
        return "the server goes on on a new timeline"
