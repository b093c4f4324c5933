"""Master keys, which wrap the keys of subjects: one file, in plain or wrapped by a key management service.

A service is asked once by a process for what it has wrapped, and when keys are rotated; never for a value, and not when somebody is
forgotten. What it answers is not believed: a key has a digest beside it in the file (its `check`), so that one which is
not the key that was wrapped is found out before anything is encrypted by it and lost. Files from before have none; then who
uses the key must see that it opens what it once wrapped.
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
"""In the environment: the service that wraps master keys, as module:name."""
ANSWER_WITHIN_S = 20.0
"""For how long a service is waited for; less than others wait for the lock that is held meanwhile."""


class Wrapping(Protocol):
    """A key management service, or what stands before one: it keeps a key that never leaves it.

    What it raises is told as a KeyServiceError, and tried again when the key is next needed. Both may be called from any thread.
    """

    def wrap(self, key: bytes) -> bytes:
        """The key, so that only `unwrap` of this service gives it back."""
        ...

    def unwrap(self, wrapped: bytes) -> bytes:
        """What `wrap` was given."""
        ...


class NamedService:
    """A service that the environment names, as `module:name`, for programs that open no workspace themselves: the `headwater` command,
    workers of Spark. It is imported, from where the program is, when it is first asked. The name is of a service, or of a function that gives one."""

    def __init__(self, named: str) -> None:
        self._named = named
        self._found: Wrapping | None = None

    def wrap(self, key: bytes) -> bytes:
        """See `Wrapping.wrap`."""
        return self._service().wrap(key)

    def unwrap(self, wrapped: bytes) -> bytes:
        """See `Wrapping.unwrap`."""
        return self._service().unwrap(wrapped)

    def _service(self) -> Wrapping:
        if self._found is None:
            module, _, name = self._named.partition(":")
            if (here := os.getcwd()) not in sys.path:
                sys.path.insert(0, here)
            try:
                found: Any = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError, ValueError) as error:
                raise KeyStoreError(
                    f"there is no key management service {self._named!r}: {error}",
                    hint=f"{KMS_VARIABLE}=my_module:service names an object with wrap and unwrap, or a function that gives one",
                ) from error
            is_service = hasattr(found, "unwrap") and not isinstance(found, type)
            self._found = found if is_service else found()
        return self._found


class Masters:
    """The master keys in a folder. Who changes them holds the folder's lock."""

    def __init__(self, storage: Storage, wrapping: Wrapping | None) -> None:
        self._storage = storage
        self._wrapping = wrapping
        self._keys: dict[int, bytes] = {}
        self._silent_until = 0.0
        """Until when a service that did not answer is not asked again, on the monotonic clock."""

    def exist(self) -> bool:
        """Whether there are any."""
        return self._storage.exists(MASTER)

    def current(self) -> int:
        """The number of the one that new keys are wrapped by. No service is asked."""
        return int(self._said()["current"])

    def checked(self, number: int) -> bool:
        """Whether a key that the service gives for this number would be found out if it were another."""
        return str(number) in self._said().get("checks", {})

    def get(self, number: int) -> bytes | None:
        """One of them, in plain; None if it is none of those in the file."""
        if number not in self._keys:
            self._keys = self.all()
        return self._keys.get(number)

    def all(self) -> dict[int, bytes]:
        """Every one, in plain."""
        said = self._said()
        kept = {int(number): bytes.fromhex(key) for number, key in said["keys"].items()}
        if said["wrapped"]:
            kept = {number: self._unwrapped(wrapped) for number, wrapped in kept.items()}
        for number, key in kept.items():
            check = said.get("checks", {}).get(str(number))
            if len(key) != KEY_BYTES or (check is not None and check != _check(key)):
                raise self._wrong(said["wrapped"], f"master key {number}")
        return kept

    def wrapped(self, keys: Mapping[int, bytes]) -> dict[int, bytes]:
        """Master keys as they are kept, each of which was seen to come back."""
        if self._wrapping is None:
            return dict(keys)
        made = {}
        for number, key in keys.items():
            wrapped = self._asked("wrap", self._wrapping.wrap, key)
            if not wrapped or key in wrapped or self._unwrapped(wrapped) != key:
                raise self._wrong(True, "a key that it has just wrapped")
            made[number] = wrapped
        return made

    def write(self, current: int, keys: Mapping[int, bytes], wrapped: Mapping[int, bytes]) -> None:
        """Keep these and no others: `keys` in plain, `wrapped` as `wrapped` gave them."""
        said = {
            "format": 1,
            "current": current,
            "wrapped": self._wrapping is not None,
            "keys": {str(number): wrapped[number].hex() for number in keys},
            "checks": {str(number): _check(key) for number, key in keys.items()},
        }
        self._storage.write_atomic(MASTER, orjson.dumps(said))
        self._keys = dict(keys)

    def _said(self) -> dict[str, Any]:
        if not self.exist():
            raise self._error(
                KeyStoreError,
                f"the master key in {self._storage.root} is missing",
                hint="bring the folder back from where it is kept safe; no private value can be read without it",
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
                f"the file {MASTER!r} in {self._storage.root} is not what was written",
                hint="bring the folder back from where it is kept safe; no private value can be read without it",
            ) from None
        return said

    # --- the service -----------------------------------------------------------------------------------------------

    def _unwrapped(self, wrapped: bytes) -> bytes:
        if self._wrapping is None:
            raise self._error(
                KeyStoreError,
                f"the master key in {self._storage.root} is wrapped by a key management service, and none is given",
                hint=f"hw.open(..., kms=...) with the service that it was made with, or {KMS_VARIABLE}=module:name",
            )
        return self._asked("unwrap", self._wrapping.unwrap, wrapped)

    def _asked(self, what: str, call: Callable[[bytes], bytes], data: bytes) -> bytes:
        """What the service answers, if it does in time. It is asked by a thread of its own, which is left to itself if not."""
        if time.monotonic() < self._silent_until:
            raise self._silence(what)
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
            self._silent_until = time.monotonic() + ANSWER_WITHIN_S
            raise self._silence(what)
        answer, error = answers[0]
        if isinstance(error, KeyStoreError):
            raise error
        if error is not None:
            raise self._error(
                KeyServiceError,
                f"the key management service did not {what} the master key: {type(error).__name__}: {error}",
                detail=f"nothing was changed; private values of {self._storage.root} are neither read nor written meanwhile",
                hint="it is asked again by the next call that needs it",
            ) from error
        if not isinstance(answer, (bytes, bytearray, memoryview)):
            raise self._wrong(True, f"{type(answer).__name__} where bytes were expected")
        return bytes(answer)

    def _silence(self, what: str) -> KeyStoreError:
        return self._error(
            KeyServiceError,
            f"the key management service has not answered for {ANSWER_WITHIN_S:g} s, asked to {what} the master key",
            detail=f"nothing was changed; private values of {self._storage.root} are neither read nor written meanwhile",
            hint="see that it can be reached from here; it is asked again in a while",
        )

    def _wrong(self, by_service: bool, what: str) -> KeyStoreError:
        if not by_service:
            return self._error(
                KeyStoreError,
                f"{what} in {self._storage.root} is not what was written",
                hint="bring the folder back from where it is kept safe",
            )
        return self._error(
            KeyStoreError,
            f"the key management service gives another answer than it must: {what}",
            detail="nothing was changed: what would be encrypted by another key could not be read again",
            hint=f"hw.open(..., kms=...) with the service, and the key there, that {self._storage.root} was made with",
        )

    def _error(self, kind: type[KeyStoreError], message: str, **more: str) -> KeyStoreError:
        return kind(message, **more, folder=str(self._storage.root))


def _check(key: bytes) -> str:
    """What a key is known by. Keys are random, so that their digest says nothing else of them."""
    return hashlib.blake2b(key, digest_size=16, person=b"headwater-master").hexdigest()
