"""Versions of a Redis sink as names: `~new~<name>` are filled, and one script gives all of them their final names.

The script renames the active names to `~old~<name>` and those of the staging version to the active names, together with the
checkpoints: the server runs nothing else meanwhile, so no client sees a mixture. The names are listed before that, while
other clients continue.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from headwater.core.errors import CheckpointConflictError, HeadwaterError
from headwater.sinks.base.blue_green import Version, refuse_kept, refuse_moved
from headwater.sinks.base.target import SinkCheckpoint, SinkError, Target, TargetShape
from headwater.sinks.redis.redis_protocol import Wire, command, tokens

_NONE = b"none"
_POSITION = b"headwater:position:"
_SCAN_COUNT = b"2000"
_SWITCH = b"""
local mark, wanted, stands = ARGV[1], ARGV[2], ARGV[3]
local olds, news, is_ours = cmsgpack.unpack(ARGV[4]), cmsgpack.unpack(ARGV[5]), {}
for _, name in ipairs(olds) do is_ours[name] = true end
for _, name in ipairs(news) do
  local place = string.sub(name, #mark + 1)
  if not is_ours[place] and redis.call('EXISTS', place) == 1 then return {'taken', place} end
end
local function rename(name, to)
  if redis.call('EXISTS', name) == 1 then redis.call('RENAME', name, to) end
end
local aside = mark == '~old~' and '~swap~' or '~old~'
for _, name in ipairs(olds) do rename(name, aside .. name) end
for _, name in ipairs(news) do rename(name, string.sub(name, #mark + 1)) end
if aside == '~swap~' then
  for _, name in ipairs(olds) do rename(aside .. name, '~old~' .. name) end
end
redis.call('SET', KEYS[3], stands == '' and 'none' or stands)
redis.call('SET', KEYS[1], wanted)
if mark ~= '~old~' then redis.call('DEL', KEYS[2]) end
return {'done'}
"""


def mark_of(version: Version | None) -> bytes:
    """Return the prefix of the names of a version."""
    return b"" if version is None else b"~%b~" % version.encode()


def position_of(sink: str, version: Version | None) -> bytes:
    """Return the Redis name of a checkpoint."""
    return f"headwater:position:{sink}{'' if version is None else f'~{version}'}".encode()


@dataclass(frozen=True)
class RedisVersions:
    """The versions of the names of one sink, which match `pattern` and are of type `kind`."""

    shape: TargetShape
    kind: bytes
    pattern: bytes
    talking: Callable[[], AbstractContextManager[Wire]]
    make: Callable[[Version], Target]

    def existing(self) -> Collection[Version]:
        """Return the versions that have a checkpoint."""
        both: tuple[Version, Version] = ("new", "old")
        with self.talking() as wire:
            return [v for v in both if wire.ask(b"EXISTS", position_of(self.shape.sink, v))]

    def target(self, version: Version) -> Target:
        """See `TargetVersions`."""
        return self.make(version)

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """List the names, then rename them in one script, provided that no checkpoint was written meanwhile: every change
        writes one."""
        sink = self.shape.sink
        places = [position_of(sink, None), position_of(sink, version), position_of(sink, "old")]
        with self.talking() as wire:
            wire.ask(b"WATCH", *places)
            try:
                active, found, old = (wire.ask(b"GET", place) for place in places)
                if version == "new" and old is not None:
                    refuse_kept(sink, self.named("old"))
                refuse_moved(sink, checkpoint, _checkpoint(found), _checkpoint(active))
                names = (_packed(self._names_of(wire, mark)) for mark in (b"", mark_of(version)))
                words = mark_of(version), found, active or b"", *names
            except HeadwaterError:
                wire.ask(b"UNWATCH")
                raise
            wire.ask(b"MULTI")
            wire.ask(b"EVAL", _SWITCH, b"3", *places, *words)
            answers = wire.ask(b"EXEC")
        if answers is None:
            raise CheckpointConflictError(
                f"another process wrote to the target of sink {sink!r}", found=None, sink=sink
            )
        (answer,) = answers
        if isinstance(answer, Exception):
            raise answer
        if answer[0] == b"taken":
            raise SinkError(
                f"the Redis key {answer[1].decode(errors='replace')!r} of another program is the name of a row of sink {sink!r}",
                hint="rename or delete the key, and try again",
                name=answer[1].decode(errors="replace"),
                sink=sink,
            )

    def drop(self, version: Version) -> None:
        """Remove the names page by page, then the checkpoint, so that an interrupted removal is found and continued."""
        with self.talking() as wire:
            for names in self._pages(wire, mark_of(version)):
                if names:
                    wire.ask(b"UNLINK", *names)
            wire.ask(b"DEL", position_of(self.shape.sink, version))

    def named(self, version: Version) -> str:
        """See `TargetVersions`."""
        return f"names {(mark_of(version) + self.pattern).decode(errors='replace')}"

    def _names_of(self, wire: Wire, mark: bytes) -> list[bytes]:
        """Return the names of a version, each once, without checkpoints."""
        every = dict.fromkeys(name for names in self._pages(wire, mark) for name in names)
        return [name for name in every if not name.startswith(_POSITION)]

    def _pages(self, wire: Wire, mark: bytes) -> Iterator[list[bytes]]:
        cursor = b"0"
        while True:
            words = b"SCAN", cursor, b"MATCH", mark + self.pattern, b"COUNT", _SCAN_COUNT, b"TYPE", self.kind
            found = tokens(wire.replies(command(*words)))
            cursor = found[1].as_py()
            yield found.slice(3).to_pylist()
            if cursor == b"0":
                return


def _packed(names: list[bytes]) -> bytes:
    """Return names as one MessagePack argument for a script, since the number of arguments of a command is limited."""
    sized = [b"\xdb" + len(name).to_bytes(4, "big") + name for name in names]
    return b"".join([b"\xdd", len(names).to_bytes(4, "big"), *sized])


def _checkpoint(text: bytes | None) -> SinkCheckpoint | None:
    return None if text is None or text == _NONE else SinkCheckpoint.parse(text)
