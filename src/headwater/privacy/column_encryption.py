"""Private columns: values are encrypted with their subject's key on append, and decrypted on read.

A stored value is AES-256-GCM: one byte of format version (1), eight with the number of the key, twelve of nonce, and the
ciphertext with its tag; topic and column are authenticated with it. The plaintext is the value's text (a STRING's own bytes),
so that a widened column can read its old values too. NULL stays NULL.

A value whose key was destroyed reads as NULL, and its row has `_forgotten` set. Reads without private columns have no extra
cost. Values are encrypted one by one, because records are moved, compacted and removed one by one without their keys.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.core.errors import CorruptionError
from headwater.privacy.subject_keys import NONCE_BYTES, SubjectKeys

_MADE = b"\x01"
_HEAD_BYTES = 9
_BEGIN = _HEAD_BYTES + NONCE_BYTES
_CODE_NONCE = b"value codes "


def encrypt_columns(batch: pa.RecordBatch, topic: TopicDefinition, keys: SubjectKeys) -> pa.RecordBatch:
    """Return rows as they are stored: private columns encrypted. New keys are durable before it returns."""
    private = [(column, subject) for column, subject in topic.private if column in batch.schema.names]
    if not private:
        return batch
    keys.refresh()
    subjects: dict[str, tuple[list[int], npt.NDArray[np.int64]]] = {}
    for _, subject in private:
        if subject not in subjects:
            subjects[subject] = _numbers(batch, [c for c, s in private if s == subject], subject, keys)
    for column, subject in private:
        numbers, places = subjects[subject]
        at = batch.schema.get_field_index(column)
        encrypted = _encrypted(_bytes_of(batch.column(at)), numbers, places, keys, _bound(topic, column))
        batch = batch.set_column(at, pa.field(column, pa.binary()), encrypted)
    return batch


def _numbers(
    batch: pa.RecordBatch, columns: Sequence[str], subject: str, keys: SubjectKeys
) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Return the keys that the rows need, and for each row the index of its key; -1 if it needs none. Only subjects with values
    get a key."""
    has = np.zeros(batch.num_rows, bool)
    for column in columns:
        has |= batch.column(column).is_valid().to_numpy(zero_copy_only=False)
    texts = batch.column(subject).cast(pa.string())
    has &= texts.is_valid().to_numpy(zero_copy_only=False)
    encoded = pc.dictionary_encode(pc.if_else(pa.array(has), texts, pa.scalar(None, pa.string())))
    places = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return keys.of(encoded.dictionary.to_pylist()), places


def _encrypted(
    values: pa.Array, numbers: Sequence[int], places: npt.NDArray[np.int64], keys: SubjectKeys, bound: bytes
) -> pa.Array:
    ciphers = [keys.cipher(number) for number in numbers]
    heads = [_MADE + number.to_bytes(8, "little") for number in numbers]
    random = os.urandom(NONCE_BYTES * len(values))
    made: list[bytes | None] = []
    for at, (value, place) in enumerate(zip(values.to_pylist(), places.tolist(), strict=True)):
        if value is None or place < 0:
            made.append(None)
            continue
        if (cipher := ciphers[place]) is None:
            # The key was destroyed since the lookup: the value is lost, like one that was written just before.
            made.append(heads[place] + bytes(NONCE_BYTES))
            continue
        nonce = random[at * NONCE_BYTES : (at + 1) * NONCE_BYTES]
        made.append(heads[place] + nonce + cipher.encrypt(nonce, value, bound))
    return pa.array(made, pa.binary())


def value_codes(plain: pa.Array, cells: pa.Array, keys: SubjectKeys) -> pa.Array:
    """Return a code for each private value, from its subject's key: equal for equal values of one subject, and useless without
    the key. `cells` are the stored values, which have the key numbers. NULL stays NULL."""
    numbers = key_numbers(cells)
    secrets = {number: _code_key(keys, number) for number in np.unique(numbers).tolist() if number}
    values = _bytes_of(plain).to_pylist()
    codes = [
        None if not number else hashlib.blake2b(value, digest_size=16, key=secrets[number]).digest()
        for value, number in zip(values, numbers.tolist(), strict=True)
    ]
    return pa.array(codes, pa.binary())


def _code_key(keys: SubjectKeys, number: int) -> bytes:
    """Return a key for codes, derived from a subject's key. Its nonce is used for this one text only."""
    cipher = keys.cipher(number)
    return b"gone" if cipher is None else cipher.encrypt(_CODE_NONCE, bytes(32), b"codes of values")[:32]


def stored_columns(columns: Sequence[str], topic: TopicDefinition) -> list[str]:
    """Return the stored columns to read so that `decrypt_columns` can return `columns`."""
    if FORGOTTEN not in columns or not topic.private:
        return list(columns)
    wanted = [name for name in columns if name != FORGOTTEN]
    return [*wanted, *(column for column, _ in topic.private if column not in wanted)]


def decrypt_columns(
    batch: pa.RecordBatch, topic: TopicDefinition, keys: SubjectKeys, columns: Sequence[str]
) -> pa.RecordBatch:
    """Return the `columns` of stored rows as readers see them: private ones decrypted, or NULL if their key was destroyed."""
    private = [column for column, _ in topic.private if column in batch.schema.names]
    if not private:
        return batch
    keys.refresh()
    gone = np.zeros(batch.num_rows, bool)
    found: dict[str, pa.Array] = {}
    for column in private:
        if column in columns:
            field = topic.schema.field(column)
            values, lost = _opened(batch.column(column), keys, _bound(topic, column))
            found[column] = _typed(values, field.type)
        else:
            lost = _lost(batch.column(column), keys)
        gone |= lost
    arrays = [
        pa.array(gone) if name == FORGOTTEN else found[name] if name in found else batch.column(name)
        for name in columns
    ]
    fields = [pa.field(name, array.type) for name, array in zip(columns, arrays, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _opened(
    cells: pa.Array, keys: SubjectKeys, bound: bytes
) -> tuple[list[bytes | None], npt.NDArray[np.bool_]]:
    """Return the decrypted values, and the mask of values whose key was destroyed."""
    from cryptography.exceptions import InvalidTag

    numbers = key_numbers(cells)
    unique, places = np.unique(numbers, return_inverse=True)
    ciphers = [None if number == 0 else keys.cipher(int(number)) for number in unique]
    try:
        values = [
            None
            if cell is None or (cipher := ciphers[place]) is None
            else cipher.decrypt(cell[_HEAD_BYTES:_BEGIN], cell[_BEGIN:], bound)
            for cell, place in zip(cells.to_pylist(), places.tolist(), strict=True)
        ]
    except InvalidTag:
        raise CorruptionError(
            f"a value of {bound.decode()} cannot be decrypted: it does not match its key",
            hint="the record was damaged, or copied from another place or workspace; other columns can be read",
            reason="decryption",
        ) from None
    missing = np.array([cipher is None for cipher in ciphers], bool) & (unique != 0)
    return values, missing[places]


def encrypt(data: bytes, number: int, keys: SubjectKeys, bound: bytes) -> bytes | None:
    """Encrypt bytes like a value, with `bound` as authenticated data; None if the key was destroyed."""
    cipher = keys.cipher(number)
    if cipher is None:
        return None
    nonce = os.urandom(NONCE_BYTES)
    return _MADE + number.to_bytes(8, "little") + nonce + cipher.encrypt(nonce, data, bound)


def decrypt(data: bytes, keys: SubjectKeys, bound: bytes) -> bytes | None:
    """Decrypt bytes that `encrypt` encrypted; None if the key was destroyed since."""
    (value,), _ = _opened(pa.array([data], pa.binary()), keys, bound)
    return value


def _lost(cells: pa.Array, keys: SubjectKeys) -> npt.NDArray[np.bool_]:
    gone = np.fromiter(keys.destroyed(), np.int64)
    return np.isin(key_numbers(cells), gone)


def key_numbers(cells: pa.Array) -> npt.NDArray[np.int64]:
    """Return the numbers of the keys of stored values; 0 for NULL."""
    valid = cells.is_valid().to_numpy(zero_copy_only=False)
    found = np.zeros(len(cells), np.int64)
    if valid.any():
        heads = pc.binary_slice(cells.filter(pa.array(valid)), 1, _HEAD_BYTES)
        found[valid] = np.frombuffer(b"".join(heads.to_pylist()), "<i8")
    return found


def _bytes_of(values: pa.Array) -> pa.Array:
    """Return values as they are encrypted: as the bytes of their text."""
    kind = values.type
    if pa.types.is_binary(kind):
        return values
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_date(kind):
        values = values.cast(pa.int32())
    return values.cast(pa.string()).cast(pa.binary())


def _typed(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """Return decrypted bytes as values of the column's present type."""
    found = pa.array(values, pa.binary())
    if pa.types.is_binary(kind):
        return found
    texts = found.cast(pa.string())
    if pa.types.is_timestamp(kind):
        return texts.cast(pa.int64()).cast(kind)
    if pa.types.is_date(kind):
        return texts.cast(pa.int32()).cast(kind)
    return texts.cast(kind)


def _bound(topic: TopicDefinition, column: str) -> bytes:
    return f"{topic.name}.{column}".encode()
