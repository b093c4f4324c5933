"""Master keys, which wrap the keys of subjects: one file, in plain or wrapped by a key management service (KMS).

A process asks the service once to unwrap the file's keys, and when keys are rotated; never for a value, and not when a subject
is forgotten. Its answer is verified: the file has a digest of each key (its `check`), so that a wrong key is detected before
values are encrypted with it and lost. Older files have no digests; then the caller must verify that a
key unwraps a subject key that it wrapped before.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from headwater.core.errors import KeyServiceError, KeyStoreError
from headwater.core.storage import Storage

MASTER = "master"
KEY_BYTES = 32
KMS_VARIABLE = "HEADWATER_KMS"
"""Environment variable with the service that wraps master keys, as module:name."""
ANSWER_WITHIN_S = 20.0
"""Timeout for an answer of the service; shorter than the timeout of others that wait for the lock held meanwhile."""


class Kms(Protocol):
    """A key management service, or a client of one: it holds a key that never leaves it.

    Its exceptions are reported as KeyServiceError, and the call is retried when the key is next needed. Both methods may be
    called from any thread.
    """

    def wrap(self, key: bytes) -> bytes:
        """Return the key in a form that only `unwrap` of this service can reverse."""
        ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the key that was passed to `wrap`."""
        ...


class NamedService:
    """A service named by the environment as `module:name`, for programs that open no workspace themselves: the `headwater`
    command, Spark workers. It is imported at its first use, with the working directory on the path. The name is that of a
    service, or of a function that returns one."""

    def __init__(self, named: str) -> None:
        self._named = named
        self._loaded: Kms | None = None

    def wrap(self, key: bytes) -> bytes:
        """See `Kms.wrap`."""
        return self._service().wrap(key)

    def unwrap(self, wrapped: bytes) -> bytes:
        """See `Kms.unwrap`."""
        return self._service().unwrap(wrapped)

    def _service(self) -> Kms:
        if self._loaded is None:
            module, _, name = self._named.partition(":")
            if (here := os.getcwd()) not in sys.path:
                sys.path.insert(0, here)
            try:
                found: Any = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError, ValueError) as error:
                raise KeyStoreError(
                    f"the key management service {self._named!r} cannot be loaded: {error}",
                    hint=f"{KMS_VARIABLE}=my_module:service names an object with wrap and unwrap, or a function that returns one",
                    reason="unknown-service",
                ) from error
            is_service = hasattr(found, "unwrap") and not isinstance(found, type)
            self._loaded = found if is_service else found()
        return self._loaded


class MasterKeys:
    """The master keys in a folder. Writers must hold the folder's lock."""

    def __init__(self, storage: Storage, kms: Kms | None) -> None:
        self._storage = storage
        self._kms = kms
        self._keys: dict[int, bytes] = {}
        self._not_before = 0.0
        """Time on the monotonic clock before which a service that timed out is not asked again."""

    def exist(self) -> bool:
        """Whether there are master keys."""
        return self._storage.exists(MASTER)

    def current(self) -> int:
        """Return the number of the master key for new keys. Does not ask the service."""
        return int(self._document()["current"])

    def checked(self, number: int) -> bool:
        """Whether the file has a digest that detects a wrong key from the service for this number."""
        return str(number) in self._document().get("checks", {})

    def get(self, number: int) -> bytes | None:
        """Return a master key in plain; None if the file has none with this number."""
        if number not in self._keys:
            self._keys = self.all()
        return self._keys.get(number)

    def all(self) -> dict[int, bytes]:
        """Return every master key, in plain."""
        said = self._document()
        kept = {int(number): bytes.fromhex(key) for number, key in said["keys"].items()}
        if said["wrapped"]:
            kept = {number: self._unwrapped(wrapped) for number, wrapped in kept.items()}
        for number, key in kept.items():
            check = said.get("checks", {}).get(str(number))
            if len(key) != KEY_BYTES or (check is not None and check != _check(key)):
                raise self._wrong_answer(said["wrapped"], f"master key {number}", operation="unwrap")
        return kept

    def wrapped(self, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Return master keys in their stored form, after verifying that the service unwraps them."""
        if self._kms is None:
            return dict(keys)
        made = {}
        for number, key in keys.items():
            wrapped = self._call("wrap", self._kms.wrap, key)
            if not wrapped or key in wrapped or self._unwrapped(wrapped) != key:
                raise self._wrong_answer(
                    True, "it does not unwrap the key that it has just wrapped", operation="wrap"
                )
            made[number] = wrapped
        return made

    def write(self, current: int, keys: Mapping[int, bytes], wrapped: Mapping[int, bytes]) -> None:
        """Store these master keys and no others: `keys` in plain, `wrapped` as returned by `wrapped`."""
        said = {
            "format": 1,
            "current": current,
            "wrapped": self._kms is not None,
            "keys": {str(number): wrapped[number].hex() for number in keys},
            "checks": {str(number): _check(key) for number, key in keys.items()},
        }
        self._storage.write_atomic(MASTER, orjson.dumps(said))
        self._keys = dict(keys)

    def _document(self) -> dict[str, Any]:
        if not self.exist():
            raise self._error(
                KeyStoreError,
                f"the master key in {self._storage.root} is missing",
                hint="restore the folder of keys from its backup; no private value can be read without it",
                reason="missing-master-key",
            )
        try:
            said: dict[str, Any] = orjson.loads(self._storage.read(MASTER))
            _ = (
                int(said["current"]),
                said["wrapped"],
                {int(n): bytes.fromhex(k) for n, k in said["keys"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._error(
                KeyStoreError,
                f"the file {MASTER!r} in {self._storage.root} is damaged",
                hint="restore the folder of keys from its backup; no private value can be read without it",
                reason="damaged-master-key",
            ) from None
        return said

    # --- the service -----------------------------------------------------------------------------------------------

    def _unwrapped(self, wrapped: bytes) -> bytes:
        if self._kms is None:
            raise self._error(
                KeyStoreError,
                f"the master key in {self._storage.root} is wrapped by a key management service, but none is configured",
                hint=f"pass the service that wrapped it: hw.open(..., kms=...), or {KMS_VARIABLE}=module:name",
                reason="no-service",
            )
        return self._call("unwrap", self._kms.unwrap, wrapped)

    def _call(self, what: str, call: Callable[[bytes], bytes], data: bytes) -> bytes:
        """Return the service's answer. It is asked in a separate thread, which is abandoned at the timeout."""
        if time.monotonic() < self._not_before:
            raise self._timeout_error(what)
        answers: list[tuple[Any, Exception | None]] = []

        def ask() -> None:
            try:
                answers.append((call(data), None))
            except Exception as error:  # noqa: BLE001 - whatever a service's client raises
                answers.append((None, error))

        thread = threading.Thread(target=ask, name="headwater-kms", daemon=True)
        thread.start()
        thread.join(ANSWER_WITHIN_S)
        if not answers:
            self._not_before = time.monotonic() + ANSWER_WITHIN_S
            raise self._timeout_error(what)
        answer, error = answers[0]
        if isinstance(error, KeyStoreError):
            raise error
        if error is not None:
            raise self._error(
                KeyServiceError,
                f"the key management service failed to {what} the master key: {type(error).__name__}: {error}",
                detail=f"nothing was changed; until it works again, private values of {self._storage.root} cannot be read or written",
                hint="the next call that needs the key asks again",
                reason="failed",
                operation=what,
            ) from error
        if not isinstance(answer, (bytes, bytearray, memoryview)):
            raise self._wrong_answer(
                True,
                f"{what} returned {type(answer).__name__}, expected bytes",
                reason="not-bytes",
                operation=what,
            )
        return bytes(answer)

    def _timeout_error(self, what: str) -> KeyStoreError:
        return self._error(
            KeyServiceError,
            f"the key management service did not {what} the master key within {ANSWER_WITHIN_S:g} s",
            detail=f"nothing was changed; until it answers, private values of {self._storage.root} cannot be read or written",
            hint="check that this machine can reach it; it is asked again later",
            reason="timeout",
            operation=what,
        )

    def _wrong_answer(
        self, by_service: bool, what: str, reason: str = "wrong-answer", **facts: Any
    ) -> KeyStoreError:
        if not by_service:
            return self._error(
                KeyStoreError,
                f"{what} in {self._storage.root} is damaged",
                hint="restore the folder of keys from its backup",
                reason="damaged-master-key",
            )
        return self._error(
            KeyStoreError,
            f"the key management service gave a wrong answer: {what}",
            detail="nothing was changed, because values encrypted by a wrong key could not be decrypted again",
            hint=f"hw.open(..., kms=...) with the service, and its key, that wrapped the keys in {self._storage.root}",
            reason=reason,
            **facts,
        )

    def _error(self, kind: type[KeyStoreError], message: str, **more: Any) -> KeyStoreError:
        return kind(message, **more, folder=str(self._storage.root))


def _check(key: bytes) -> str:
    """Return the digest of a key. Keys are random, so the digest reveals nothing else about them."""
    return hashlib.blake2b(key, digest_size=16, person=b"headwater-master").hexdigest()
