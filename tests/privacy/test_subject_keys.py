"""Keys of subjects in a folder: theirs alone, destroyed for good, and whole after every crash."""

import os
import shutil
import stat
from pathlib import Path

import orjson
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.storage import Storage
from headwater.privacy.key_files import FORGOTTEN, KEYS, LOCK, SLOT
from headwater.privacy.master_keys import MASTER
from headwater.privacy.subject_keys import FileKeys, subject_text
from headwater.testing import Crash, FaultyStorage
from tests.raising import raises


class Reversing:
    """A key management service that anybody could break."""

    def __init__(self) -> None:
        self.wrapped = 0

    def wrap(self, key: bytes) -> bytes:
        self.wrapped += 1
        return key[::-1]

    def unwrap(self, wrapped: bytes) -> bytes:
        return wrapped[::-1]


def keys_in(folder: Path, kms: Reversing | None = None) -> FileKeys:
    return FileKeys(Storage(folder, secret=True), ManualClock(), kms)


def sealed(keys: FileKeys, subject: str) -> tuple[int, bytes]:
    (number,) = keys.of([subject])
    cipher = keys.cipher(number)
    assert cipher is not None
    return number, cipher.encrypt(bytes(12), subject.encode(), None)


def opened(keys: FileKeys, number: int, data: bytes) -> str | None:
    keys.refresh()
    cipher = keys.cipher(number)
    return None if cipher is None else cipher.decrypt(bytes(12), data, None).decode()


def test_nothing_is_made_before_a_key_is(tmp_path: Path) -> None:
    keys = keys_in(tmp_path / "k")
    keys.refresh()
    assert (keys.forgotten(), keys.destroyed()) == ((), frozenset())
    with raises(hw.UsageError, subject="7", reason="no-values"):
        keys.forget("7")
    assert not (tmp_path / "k").exists()


def test_only_the_owner_can_look(tmp_path: Path) -> None:
    keys_in(tmp_path / "k").of(["a"])
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in [tmp_path / "k", *(tmp_path / "k").iterdir()]}
    assert modes.pop("k") == 0o700
    assert set(modes.values()) == {0o600}


def test_a_key_is_the_same_for_every_process_that_asks(tmp_path: Path) -> None:
    one, two = keys_in(tmp_path), keys_in(tmp_path)
    number, data = sealed(one, "anna")
    assert two.of(["bert", "anna", "anna"]) == [2, number, number]
    assert opened(two, number, data) == "anna"
    assert one.of(["bert"]) == [2]


def test_a_destroyed_key_is_overwritten_and_refused_everywhere(tmp_path: Path) -> None:
    one, two = keys_in(tmp_path), keys_in(tmp_path)
    number, data = sealed(one, "anna")
    other = sealed(one, "bert")
    assert opened(two, number, data) == "anna"
    before = (tmp_path / KEYS).read_bytes()
    one.forget("anna", "root", "asked")
    assert (opened(two, number, data), opened(one, number, data)) == (None, None)
    assert opened(two, *other) == "bert"
    after = (tmp_path / KEYS).read_bytes()
    assert before[48:108] not in after
    assert after[SLOT.size :] == before[SLOT.size :]
    assert two.of(["anna"]) == [3]


def test_another_master_opens_the_same_keys_and_the_old_one_is_gone(tmp_path: Path) -> None:
    one, two = keys_in(tmp_path), keys_in(tmp_path)
    first, second = sealed(one, "anna"), sealed(one, "bert")
    one.forget("bert")
    master = (tmp_path / MASTER).read_bytes()
    assert one.rotate() == 1
    assert (tmp_path / MASTER).read_bytes() != master
    for keys in (one, two, keys_in(tmp_path)):
        assert (opened(keys, *first), opened(keys, *second)) == ("anna", None)
    assert keys_in(tmp_path / "none").rotate() == 0


def test_a_service_wraps_the_master_alone(tmp_path: Path) -> None:
    kms = Reversing()
    data = sealed(keys_in(tmp_path, kms), "anna")
    keys_in(tmp_path, kms).of(["bert", "carl"])
    assert kms.wrapped == 1
    assert opened(keys_in(tmp_path, kms), *data) == "anna"
    with raises(hw.KeyStoreError, reason="no-service"):
        opened(keys_in(tmp_path), *data)


def test_keys_that_are_not_there_are_no_forgetting(tmp_path: Path) -> None:
    number, data = sealed(keys_in(tmp_path / "k"), "anna")
    with raises(hw.KeyStoreError, reason="missing-key", key=1) as missing:
        opened(keys_in(tmp_path / "other"), number, data)
    assert "HEADWATER_KEYS" in str(missing.value.hint)


def test_damage_is_told_and_nothing_is_overwritten(tmp_path: Path) -> None:
    keys_in(tmp_path).of(["anna", "bert"])
    whole = (tmp_path / KEYS).read_bytes()
    (tmp_path / KEYS).write_bytes(b"\xff" + whole[1:])
    with raises(hw.KeyStoreError, reason="damaged-slot", key=1):
        keys_in(tmp_path).of(["carl"])
    (tmp_path / KEYS).write_bytes(whole[: SLOT.size + 60])  # torn off: the second was never used
    assert keys_in(tmp_path).of(["anna", "carl"]) == [1, 2]


@pytest.mark.parametrize("subject", ["", None, True, 1.5, ("a",)])
def test_a_subject_is_a_number_or_a_text(subject: object) -> None:
    with raises(hw.UsageError, argument="subject"):
        subject_text(subject)


def test_crashed_at_any_call_a_forgetting_was_begun_or_was_not(tmp_path: Path) -> None:
    """Whatever is left: the key works as before, or is refused, and overwritten by whoever comes next."""
    keys_in(tmp_path / "made").of(["anna", "bert"])
    number, data = sealed(keys_in(tmp_path / "made"), "anna")
    seen = set()
    for call in range(1, 40):
        for when in ("before", "torn", "after"):
            folder = tmp_path / "run"
            shutil.copytree(tmp_path / "made", folder)
            storage = FaultyStorage(folder)
            storage.crash_at(call, when)  # type: ignore[arg-type]
            try:
                FileKeys(storage, ManualClock()).forget("anna")
                ended = True
            except Crash:
                ended = False
            keys = keys_in(folder)
            left = opened(keys, number, data)
            forgotten = [one.subject for one in keys.forgotten()]
            assert (left, forgotten) in (("anna", []), (None, ["anna"]))
            if ended:
                assert forgotten
            if forgotten:
                slot = (folder / KEYS).read_bytes()[: SLOT.size]
                assert slot[24:120] == bytes(96), "the slot is overwritten"
            assert opened(keys, *sealed(keys, "bert")) == "bert"
            seen.add((bool(forgotten), ended))
            shutil.rmtree(folder)
        if ended:
            break
    assert seen == {(False, False), (True, False), (True, True)}


def test_crashed_at_any_call_a_rotation_loses_no_key(tmp_path: Path) -> None:
    """Nor does it leave a copy of one behind, which would outlive the key when that is destroyed."""
    keys_in(tmp_path / "made").of(["anna", "bert", "carl"])
    keys_in(tmp_path / "made").forget("carl")
    number, data = sealed(keys_in(tmp_path / "made"), "anna")
    other = sealed(keys_in(tmp_path / "made"), "bert")
    master = orjson.loads((tmp_path / "made" / MASTER).read_bytes())["keys"]["1"].encode()
    left_behind = 0
    for call in range(1, 60):
        for when in ("before", "torn", "after"):
            folder = tmp_path / "run"
            shutil.copytree(tmp_path / "made", folder)
            storage = FaultyStorage(folder)
            storage.crash_at(call, when)  # type: ignore[arg-type]
            ended = False
            try:
                FileKeys(storage, ManualClock()).rotate()
                ended = True
            except Crash:
                pass
            left_behind += any(path.suffix == ".tmp" for path in folder.iterdir())
            keys = keys_in(folder)
            assert (opened(keys, number, data), opened(keys, *other)) == ("anna", "bert")
            slots = (folder / KEYS).read_bytes()
            keys.forget("anna")
            wrapped = slots[SLOT.size * (number - 1) + 60 : SLOT.size * (number - 1) + 108]
            held = b"".join(path.read_bytes() for path in folder.iterdir())
            assert wrapped not in held
            assert {path.name for path in folder.iterdir()} == {MASTER, KEYS, FORGOTTEN, LOCK}
            assert keys.rotate() == 1
            assert master not in b"".join(path.read_bytes() for path in folder.iterdir())
            assert (opened(keys, number, data), opened(keys, *other)) == (None, "bert")
            shutil.rmtree(folder)
        if ended:
            assert left_behind
            return
    pytest.fail("it never came through")


def test_a_process_that_reads_while_keys_are_rotated_reads_on(tmp_path: Path) -> None:
    one, two = keys_in(tmp_path), keys_in(tmp_path)
    first, second = sealed(one, "anna"), sealed(one, "bert")
    assert opened(two, *first) == "anna"
    one.rotate()
    cipher = two.cipher(second[0])  # between its look at what is new and the next
    assert cipher is not None
    assert cipher.decrypt(bytes(12), second[1], None) == b"bert"


def test_the_folder_is_where_it_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(place: Path, **options: str) -> None:
        with hw.open(place, durability="os", **options) as ws:  # type: ignore[arg-type]
            ws.topic("p", "u BIGINT NOT NULL, e STRING", private={"e": "u"}).append([{"u": 1, "e": "x"}])

    write(tmp_path / "a")
    assert (tmp_path / "a.keys").is_dir()
    write(tmp_path / "b", keys=str(tmp_path / "said"))
    assert (tmp_path / "said").is_dir()
    assert not (tmp_path / "b.keys").exists()
    monkeypatch.setenv("HEADWATER_KEYS", str(tmp_path / "env"))
    write(tmp_path / "c")
    assert len(os.listdir(tmp_path / "env")) == 1
    assert FORGOTTEN not in os.listdir(next((tmp_path / "env").iterdir()))
