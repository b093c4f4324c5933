"""A key management service that fails: it is told, nothing is changed, and nothing is encrypted by a key that would be lost."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli
from headwater.core.clock import ManualClock
from headwater.core.storage import Storage
from headwater.privacy import master_keys
from headwater.privacy.key_files import KEYS, SLOT
from headwater.privacy.master_keys import MASTER
from headwater.privacy.subject_keys import FileKeys
from tests.raising import raises


class Service:
    """Wraps by a key of its own; `fails`, if set, answers in its place."""

    def __init__(self, key: int = 0x5A) -> None:
        self.key = key
        self.asked: list[str] = []
        self.fails: Callable[[bytes], Any] | None = None

    def wrap(self, key: bytes) -> bytes:
        return self._answer("wrap", key)

    def unwrap(self, wrapped: bytes) -> bytes:
        return self._answer("unwrap", wrapped)

    def _answer(self, what: str, data: bytes) -> bytes:
        self.asked.append(what)
        return bytes(byte ^ self.key for byte in data) if self.fails is None else self.fails(data)


def keys_in(folder: Path, service: Service | None) -> FileKeys:
    return FileKeys(Storage(folder, secret=True), ManualClock(), service)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def raising(data: bytes) -> bytes:
    raise ConnectionError("no route to host")


FAILURES: dict[str, tuple[Callable[[bytes], Any], type[hw.KeyStoreError], str]] = {
    "raises": (raising, hw.KeyServiceError, "failed"),
    "another key": (lambda data: bytes(32), hw.KeyStoreError, "wrong-answer"),
    "too short": (lambda data: data[:31], hw.KeyStoreError, "wrong-answer"),
    "too long": (lambda data: data + b"x", hw.KeyStoreError, "wrong-answer"),
    "nothing": (lambda data: b"", hw.KeyStoreError, "wrong-answer"),
    "no bytes": (lambda data: None, hw.KeyStoreError, "not-bytes"),
    "text": (lambda data: data.hex(), hw.KeyStoreError, "not-bytes"),
}
EACH = pytest.mark.parametrize(("fails", "kind", "reason"), FAILURES.values(), ids=list(FAILURES))


@EACH
@pytest.mark.parametrize("has_checks", [True, False], ids=["", "keys-from-before"])
def test_a_service_that_fails_is_told_and_nothing_is_changed(
    tmp_path: Path,
    fails: Callable[[bytes], Any],
    kind: type[hw.KeyStoreError],
    reason: str,
    has_checks: bool,
) -> None:
    service = Service()
    keys_in(tmp_path, service).of(["anna", "bert"])
    if not has_checks:
        said = orjson.loads((tmp_path / MASTER).read_bytes())
        del said["checks"]
        (tmp_path / MASTER).write_bytes(orjson.dumps(said))
        if reason == "wrong-answer" and len(fails(bytes(32))) == 32:
            reason = "unwrap"
    before = contents(tmp_path)
    service.fails = fails
    keys = keys_in(tmp_path, service)
    for call in (lambda: keys.of(["carl"]), lambda: keys.cipher(1), keys.rotate):
        keys.refresh()
        with raises(kind, reason=reason, folder=str(tmp_path)) as caught:
            call()
        assert caught.value.hint is not None
        assert contents(tmp_path) == before
    assert keys.of(["anna", "bert"]) == [1, 2], "it is not needed to know who has a key"

    keys.forget("anna")  # nor to destroy one
    slot = (tmp_path / KEYS).read_bytes()[: SLOT.size]
    assert slot[24:120] == bytes(96)
    assert keys.cipher(1) is None

    service.fails = None  # the same object goes on once the service does
    assert keys.cipher(2) is not None
    assert keys.of(["carl"]) == [3]
    assert keys.rotate() == 2


@EACH
def test_a_first_key_is_not_made_by_a_service_that_fails(
    tmp_path: Path, fails: Callable[[bytes], Any], kind: type[hw.KeyStoreError], reason: str
) -> None:
    service = Service()
    service.fails = fails
    with raises(kind, reason=reason):
        keys_in(tmp_path, service).of(["anna"])
    assert MASTER not in contents(tmp_path)
    assert KEYS not in contents(tmp_path)


@pytest.mark.parametrize("wraps", [lambda key: key, lambda key: b"v1:" + key], ids=["as it is", "within"])
def test_a_key_that_comes_back_as_it_is_is_not_kept(tmp_path: Path, wraps: Callable[[bytes], bytes]) -> None:
    service = Service()
    service.wrap = wraps  # type: ignore[method-assign]
    with raises(hw.KeyStoreError, reason="wrong-answer", operation="wrap"):
        keys_in(tmp_path, service).of(["anna"])
    assert MASTER not in contents(tmp_path)


def test_a_service_that_does_not_answer_is_not_waited_for_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, over = Service(), threading.Event()
    keys_in(tmp_path, service).of(["anna"])
    service.asked.clear()
    service.fails = lambda data: over.wait(20)
    monkeypatch.setattr(master_keys, "ANSWER_WITHIN_S", 0.05)
    keys = keys_in(tmp_path, service)
    keys.refresh()
    for _ in range(3):
        with raises(hw.KeyServiceError, reason="timeout", operation="unwrap"):
            keys.cipher(1)
    assert service.asked == ["unwrap"]
    over.set()


def test_a_service_is_asked_once_by_a_process(tmp_path: Path) -> None:
    service = Service()
    keys_in(tmp_path, service).of(["anna"])
    service.asked.clear()
    keys = keys_in(tmp_path, service)
    for n in range(10):
        number = keys.of([f"subject {n}"])[0]
        assert keys.cipher(number) is not None
    assert keys.cipher(1) is not None
    assert service.asked == ["unwrap"]


@pytest.mark.parametrize("at", range(1, 5))
def test_a_service_that_fails_in_the_middle_of_a_rotation_leaves_all_as_it_was(
    tmp_path: Path, at: int
) -> None:
    service = Service()
    keys_in(tmp_path, service).of(["anna"])
    before = contents(tmp_path)
    keys = keys_in(tmp_path, service)
    keys.refresh()
    assert keys.cipher(1) is not None
    service.asked.clear()

    def later(data: bytes) -> bytes:
        if len(service.asked) >= at:
            raise TimeoutError("read timed out")
        return bytes(byte ^ service.key for byte in data)

    service.fails = later
    with raises(hw.KeyServiceError, reason="failed") as caught:
        keys.rotate()
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert contents(tmp_path) == before
    service.fails = None
    assert keys.rotate() == 1
    assert keys_in(tmp_path, service).of(["anna"]) == [1]


def test_another_key_of_the_service_opens_nothing_and_the_right_one_still_does(tmp_path: Path) -> None:
    keys_in(tmp_path, Service()).of(["anna"])
    with raises(hw.KeyStoreError, reason="wrong-answer", operation="unwrap"):
        keys_in(tmp_path, Service(0x17)).of(["bert"])
    assert keys_in(tmp_path, Service()).of(["bert"]) == [2]


def test_a_service_takes_over_keys_in_plain_when_they_are_rotated(tmp_path: Path) -> None:
    keys_in(tmp_path, None).of(["anna"])
    service = Service()
    keys = keys_in(tmp_path, service)
    assert keys.of(["bert"]) == [2]
    assert service.asked == []
    assert keys.rotate() == 2
    with raises(hw.KeyStoreError, reason="no-service"):
        keys_in(tmp_path, None).of(["carl"])
    assert keys_in(tmp_path, service).of(["carl"]) == [3]


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"current": 1}', b'{"current": 1, "wrapped": false, "keys": {"1": "z"}}']
)
def test_a_damaged_master_is_told_and_not_replaced(tmp_path: Path, damage: bytes) -> None:
    keys_in(tmp_path, None).of(["anna"])
    (tmp_path / MASTER).write_bytes(damage)
    with raises(hw.KeyStoreError, reason="damaged-master-key"):
        keys_in(tmp_path, None).of(["bert"])
    assert (tmp_path / MASTER).read_bytes() == damage


def test_a_missing_master_is_told_and_no_other_is_made(tmp_path: Path) -> None:
    keys_in(tmp_path, None).of(["anna"])
    (tmp_path / MASTER).unlink()
    for call in (lambda keys: keys.of(["bert"]), lambda keys: keys.rotate(), lambda keys: keys.check()):
        with raises(hw.KeyStoreError, reason="missing-master-key"):
            call(keys_in(tmp_path, None))
    assert not (tmp_path / MASTER).exists()


def test_the_environment_names_a_service_for_programs_that_open_no_workspace_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vault_client.py").write_text(
        "class Service:\n"
        "    def wrap(self, key): return bytes(byte ^ 0x5A for byte in key)\n"
        "    unwrap = wrap\n"
        "service, made = Service(), Service\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(sys.path))
    with hw.open(tmp_path / "ws", durability="os", kms=Service()) as ws:
        ws.topic("p", "u BIGINT NOT NULL, e STRING", private={"e": "u"}).append([{"u": 1, "e": "secret"}])

    def tail() -> Any:
        return CliRunner().invoke(cli, ["-w", "ws", "tail", "p"])

    told = tail()
    assert told.exit_code == 1
    assert "HEADWATER_KMS=module:name" in told.output
    for named in ("vault_client:service", "vault_client:made"):
        monkeypatch.setenv("HEADWATER_KMS", named)
        assert '"secret"' in tail().output
    for wrong in ("vault_client:other", "nowhere:service", "vault_client", ":"):
        monkeypatch.setenv("HEADWATER_KMS", wrong)
        assert f"the key management service {wrong!r} cannot be loaded" in tail().output
