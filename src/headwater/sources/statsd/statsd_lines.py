"""Parses StatsD and DogStatsD lines to columns: all lines of many datagrams at once. Pure: bytes in, Arrow out.

A line is `name:value|kind`, then in any order `|@rate`, `|#tag:value,tag` and `|T<seconds since 1970>`. The DogStatsD fields
`|c:`, `|e:` and `|card:` are ignored. A line with several values (`name:1:2:3|h`) becomes one row per value. Every other line
is malformed: it is counted and reported, never guessed at. Events (`_e{`) and service checks (`_sc|`) are malformed, too, as
they are not metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.clock import Microseconds
from headwater.core.hashing import Indices, Mask
from headwater.core.types import TIMESTAMP

COLUMNS = (
    "name STRING NOT NULL, kind STRING NOT NULL, value DOUBLE, rate DOUBLE NOT NULL, tags MAP<STRING, STRING>, "
    "at TIMESTAMP NOT NULL, member STRING"
)
"""`value` is the value that was sent, not multiplied by `1 / rate`. For a set, `value` is NULL and `member` is the counted
element."""
REPEATED_BYTES_MAX = 256 << 10
"""Each value of a line becomes a row with the line's name and tags: maximum size of these repetitions for one line."""
PIECE_BYTES = 2 << 20
"""Number of bytes parsed at a time, unless a single blob is larger. This bounds the size of the result."""
EXAMPLES_MAX = 5
EXAMPLE_CHARACTERS_MAX = 120

Received = tuple[Microseconds, bytes]
"""Time of receipt, and datagrams joined with line ends."""

_LETTERS = ("c", "g", "ms", "h", "d", "s")
_KINDS = ("counter", "gauge", "timer", "histogram", "distribution", "set")
_CHANGE = "gauge_change"
"""Kind of a gauge line whose value begins with `+` or `-`."""
_LINE = r"^(?P<name>[^:|\x00-\x1f]+):(?P<value>[^|]+)\|(?P<letter>c|g|ms|h|d|s)(?P<rest>(?:\|.*)?)$"
_REST = r"^(?:\|(?:@|#|T|c:|e:|card:)[^|]*)*$"
_NUMBER = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?"
_VALUE = rf"^[+-]?{_NUMBER}$"
_BROKEN = "\ufffd"
"""Replacement for bytes that are not UTF-8."""
_MAP = pa.map_(pa.string(), pa.string())


@dataclass(frozen=True, eq=False)
class Parsed:
    """Parsed lines: their rows in the columns `COLUMNS`, the number of valid lines, the number of malformed lines, and the last
    malformed ones."""

    columns: pa.Table
    lines: int
    malformed: int
    examples: tuple[str, ...]


def pieces(received: Sequence[Received]) -> Iterator[list[Received]]:
    """Yield the received blobs in order, in groups of about `PIECE_BYTES`."""
    part: list[Received] = []
    size = 0
    for one in received:
        if part and size + len(one[1]) > PIECE_BYTES:
            yield part
            part, size = [], 0
        part.append(one)
        size += len(one[1])
    if part:
        yield part


def parse(received: Sequence[Received]) -> Parsed:
    """Parse all received lines, in order."""
    received = received or [(0, b"")]
    whole = b"\n".join(blob for _, blob in received)
    counts = [blob.count(b"\n") + 1 for _, blob in received]
    moments = np.repeat(np.array([at for at, _ in received], np.int64), counts)
    try:
        text, is_broken = whole.decode(), False
    except UnicodeDecodeError:
        text, is_broken = whole.decode("utf-8", "replace"), True
    lines = pc.split_pattern(pa.array([text], pa.large_string()), "\n").flatten()
    if "\r" in text:
        lines = pc.utf8_rtrim(lines, "\r")
    there = _mask(pc.not_equal(lines, ""))
    if not there.all():
        lines, moments = lines.filter(pa.array(there)), moments[there]
    parts = pc.extract_regex(lines, _LINE)
    good = _mask(parts.is_valid())
    if is_broken:
        good &= ~_mask(pc.match_substring(lines, _BROKEN))
    name, value, letter, rest = (
        pc.struct_field(parts, field) for field in ("name", "value", "letter", "rest")
    )
    fields = _fields(rest, good)
    good &= fields.fit
    at = np.where(fields.says_time, fields.times, moments)
    is_set = _mask(pc.equal(letter, "s"))
    # an element of a set may contain colons
    several = good & ~is_set & _mask(pc.match_substring(value, ":"))
    if several.any():
        too_wide = _mask(pc.greater(_repeated_bytes(lines, value), REPEATED_BYTES_MAX)) & several
        several, good = several & ~too_wide, good & ~too_wide
    values, owners = _spread(value, several)
    numbers, is_change, fits = _numbers(values, is_set[owners], _mask(pc.equal(letter, "g"))[owners])
    good[owners[~fits]] = False  # one invalid value makes its line malformed
    kept = good[owners]
    owners, numbers, is_change = owners[kept], numbers[kept], is_change[kept]
    sets = is_set[owners]
    columns = {
        "name": name.cast(pa.string()).take(owners),
        "kind": _kinds(letter.take(owners), is_change),
        "value": pa.array(numbers, mask=sets),
        "rate": pa.array(fields.rates[owners]),
        "tags": fields.tags.take(owners),
        "at": pa.array(at[owners]).cast(pa.timestamp("us")).cast(TIMESTAMP),
        "member": pc.if_else(pa.array(sets), values.cast(pa.string()).filter(pa.array(kept)), None),
    }
    bad = lines.filter(pa.array(~good))
    last = bad.slice(max(0, len(bad) - EXAMPLES_MAX)).to_pylist()
    examples = tuple(_shown(line[:EXAMPLE_CHARACTERS_MAX]) for line in last)
    return Parsed(pa.table(columns), int(good.sum()), len(bad), examples)


def _shown(line: str) -> str:
    """Return a line with escapes for unprintable characters: any sender decides its content."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


def _mask(column: pa.Array) -> Mask:
    """Return the mask of the true values of a column; NULL is false."""
    return np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False), np.bool_)


@dataclass(frozen=True, eq=False)
class _Fields:
    """Optional fields after the kind of each line; `fit` marks the lines whose fields are all valid."""

    fit: Mask
    rates: npt.NDArray[np.float64]
    tags: pa.Array
    says_time: Mask
    times: Indices


def _fields(rest: pa.Array, good: Mask) -> _Fields:
    """Parse the optional fields of lines. Few distinct texts occur, so each is parsed once."""
    texts = pc.if_else(pa.array(good), rest, "").dictionary_encode()
    distinct, of = texts.dictionary, texts.indices.to_numpy()
    fit = _mask(pc.match_substring_regex(distinct, _REST))
    rates, is_share = _rates(distinct)
    times, says_time, is_time = _times(distinct)
    fit &= is_share & is_time
    return _Fields(fit[of], rates[of], _tags(distinct).take(texts.indices), says_time[of], times[of])


def _first_field(rest: pa.Array, mark: str, pattern: str) -> tuple[pa.Array, Mask]:
    """Return the text of the first field with a marker, NULL if it is missing or invalid; and a mask of the lines without an
    invalid one."""
    found = pc.struct_field(pc.extract_regex(rest, rf"\|{mark}(?P<said>[^|]*)"), "said")
    fits = pc.match_substring_regex(found, rf"^(?:{pattern})$")
    return pc.if_else(fits, found, None), _mask(found.is_null()) | _mask(fits)


def _rates(rest: pa.Array) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return the sample rates, 1 by default, and a mask of the valid ones: greater than 0, at most 1."""
    found, fits = _first_field(rest, "@", _NUMBER)
    rates = pc.fill_null(found.cast(pa.float64()), 1.0).to_numpy()
    return rates, fits & (rates > 0) & (rates <= 1)


def _times(rest: pa.Array) -> tuple[Indices, Mask, Mask]:
    """Return the explicit times in microseconds, the mask of lines that have one, and the mask of lines without an invalid
    one."""
    found, fits = _first_field(rest, "T", "[0-9]{1,11}")
    return pc.fill_null(found.cast(pa.int64()), 0).to_numpy() * 1_000_000, _mask(found.is_valid()), fits


def _repeated_bytes(lines: pa.Array, value: pa.Array) -> pa.Array:
    """Return the number of bytes of each line apart from its values, times the number of values."""
    around = pc.subtract(pc.binary_length(lines), pc.binary_length(value))
    return pc.multiply(around, pc.add(pc.count_substring(value, ":"), 1))


def _spread(value: pa.Array, several: Mask) -> tuple[pa.Array, Indices]:
    """Return the individual values, and for each the index of its line."""
    if not several.any():
        return value, np.arange(len(value))
    parts = pc.split_pattern(pc.if_else(pa.array(several), value, ""), ":")
    owners = pc.list_parent_indices(parts).to_numpy()
    single = pa.array(~several[owners])
    return pc.if_else(single, value.take(owners), parts.flatten()), owners


def _numbers(values: pa.Array, is_set: Mask, is_gauge: Mask) -> tuple[npt.NDArray[np.float64], Mask, Mask]:
    """Return the values as numbers, the mask of relative changes of a gauge, and the mask of values that are valid for their
    kind."""
    is_number = _mask(pc.match_substring_regex(values, _VALUE)) & ~is_set
    texts = pc.utf8_ltrim(pc.if_else(pa.array(is_number), values, None), "+")
    numbers = pc.fill_null(texts.cast(pa.float64()), 0.0).to_numpy()
    is_change = is_gauge & _mask(pc.match_substring_regex(values, r"^[+-]"))
    return numbers, is_change, is_set | (is_number & np.isfinite(numbers))


def _kinds(letters: pa.Array, is_change: Mask) -> pa.Array:
    places = pc.index_in(letters.cast(pa.string()), value_set=pa.array(_LETTERS))
    names = pa.array(_KINDS).take(places)
    return pc.if_else(pa.array(is_change), _CHANGE, names) if is_change.any() else names


def _tags(rest: pa.Array) -> pa.Array:
    """Return the tags as maps, NULL for lines without tags."""
    texts = pc.struct_field(pc.extract_regex(rest, r"\|#(?P<tags>[^|]*)"), "tags").to_pylist()
    return pa.array([None if text is None else _tags_in(text) or None for text in texts], _MAP)


def _tags_in(text: str) -> list[tuple[str, str | None]]:
    """Return the tags in a text. The last occurrence of a repeated name wins; a tag without a value has NULL."""
    found: dict[str, str | None] = {}
    for tag in text.split(","):
        name, colon, value = tag.partition(":")
        if name:
            found[name] = value if colon else None
    return list(found.items())
