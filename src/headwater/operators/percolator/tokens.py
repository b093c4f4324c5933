"""Vectorized tokenization: `Analysis.words` for the fields of many documents at once.

Words with equal spelling share a code, so that properties of a word are computed once for all its occurrences.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.text_analysis import WORD_BYTES, Lexicon, letters
from headwater.operators.percolator.fields import Field

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tokens:
    """The words of a field, in the order of documents and of their text; a keyword is one word."""

    row: Ints
    """Document of each word."""
    item: Ints
    """Index of the value that contains each word, among the values of the field."""
    position: Ints
    start: Ints
    end: Ints
    code: Ints
    """Index of each word among the distinct words."""
    lexemes: Ints
    """Numbers of the distinct words in the lexicon."""


def tokens_of(field: Field, values: pa.Array, lexicon: Lexicon) -> Tokens:
    """Tokenize a field of documents; the lexicon has an analysis for text fields, and none for keyword fields."""
    texts, row, item = _flat(field, values)
    if field.kind == "keyword":
        codes = texts.dictionary_encode()
        written = codes.dictionary.to_pylist()
        lengths = np.asarray(pc.utf8_length(texts)).astype(np.int64)
        begin = np.zeros(len(row), dtype=np.int64)
        code = np.asarray(codes.indices).astype(np.int64)
        return Tokens(row, item, item, begin, lengths, code, lexicon.look_up(written))
    text, place, start, end, code, written = _cut(texts)
    position = place + _bases(row, text, place)[text] if field.many else place
    return Tokens(row[text], item[text], position, start, end, code, lexicon.look_up(written))


def _flat(field: Field, values: pa.Array) -> tuple[pa.Array, Ints, Ints]:
    """Return the texts of all documents, without NULLs, with the document of each and its index among the document's
    values."""
    row = np.arange(len(values), dtype=np.int64)
    if field.many:
        row = np.repeat(row, np.asarray(pc.list_value_length(values).fill_null(0)).astype(np.int64))
        values = values.flatten()
    there = np.asarray(values.is_valid())
    row, values = row[there], values.drop_null()
    values = values.cast(pa.large_string())
    first = np.searchsorted(row, row, side="left")
    return values, row, np.arange(len(row), dtype=np.int64) - first


def _cut(texts: pa.Array) -> tuple[Ints, Ints, Ints, Ints, Ints, list[str]]:
    """Split texts into words: return the text, index in the text, start, end (in characters) and code of each, and the
    words."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    buffer = texts.buffers()[2]
    data = np.frombuffer(buffer if buffer is not None else b"", dtype=np.uint8)[
        : offsets[-1] if len(offsets) else 0
    ]
    data = data[offsets[0] :] if len(offsets) else data
    bounds = offsets - offsets[0] if len(offsets) else np.zeros(1, dtype=np.int64)
    if not len(data):
        none = np.zeros(0, dtype=np.int64)
        return none, none, none, none, none, []
    ascii_only = bool(data.max() < 0x80)
    if ascii_only:
        points, lead = data, None
        char_bounds = bounds
    else:
        points = np.frombuffer(data.tobytes().decode().encode("utf-32-le"), dtype=np.uint32)
        leads = (data & 0xC0) != 0x80
        lead = np.append(np.flatnonzero(leads), len(data))
        char_bounds = np.searchsorted(lead, bounds)
    inside = np.zeros(len(points) + 1, dtype=np.bool_)
    inside[:-1] = letters()[points]
    before = np.zeros(len(points) + 1, dtype=np.bool_)
    before[1:] = inside[:-1]
    before[char_bounds] = False  # a word ends with its text
    start = np.flatnonzero(inside & ~before)
    after = np.zeros(len(points) + 1, dtype=np.bool_)
    after[1:] = inside[:-1]
    ends_here = after & ~inside
    at_bounds = char_bounds[after[char_bounds]]
    ends_here[at_bounds] = True
    end = np.flatnonzero(ends_here)
    text = np.searchsorted(char_bounds, start, side="right") - 1
    firsts = np.searchsorted(text, text, side="left")
    place = np.arange(len(start), dtype=np.int64) - firsts
    byte_start, byte_end = (start, end) if lead is None else (lead[start], lead[end])
    short = byte_end - byte_start < WORD_BYTES
    if not short.all():
        start, end, text, place = start[short], end[short], text[short], place[short]
        byte_start, byte_end = byte_start[short], byte_end[short]
    code, written = _codes(data, byte_start, byte_end)
    begin = char_bounds[text]
    return text, place, start - begin, end - begin, code, written


def _codes(data: npt.NDArray[np.uint8], start: Ints, end: Ints) -> tuple[Ints, list[str]]:
    """Return a code for each word, and the distinct words."""
    width = end - start
    at = np.zeros(len(width) + 1, dtype=np.int64)
    np.cumsum(width, out=at[1:])
    packed = data[spread(start, width)]
    words = pa.LargeStringArray.from_buffers(len(width), pa.py_buffer(at), pa.py_buffer(packed))
    codes = words.dictionary_encode()
    return np.asarray(codes.indices).astype(np.int64), codes.dictionary.to_pylist()


def _bases(row: Ints, text: Ints, place: Ints) -> Ints:
    """Return the position offset of each text of a list: texts are separated by a gap of one position, as in tantivy."""
    length = np.zeros(len(row), dtype=np.int64)
    np.maximum.at(length, text, place + 1)
    length += 1
    ends = np.cumsum(length)
    first = np.searchsorted(row, row, side="left")
    return ends - length - (ends - length)[first]


def spread(start: Ints, count: Ints) -> Ints:
    """Return the concatenated ranges [start, start + count)."""
    total = int(count.sum())
    before = np.cumsum(count) - count
    return np.repeat(start - before, count) + np.arange(total, dtype=np.int64)


def distinct(keys: Ints) -> tuple[Ints, Ints]:
    """Return the distinct keys, ascending, and the index of the first occurrence of each.

    For many keys, sorting is faster than `np.unique`, which hashes.
    """
    order = np.argsort(keys, kind="stable")
    arranged = keys[order]
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = arranged[1:] != arranged[:-1]
    return arranged[first], order[first]
