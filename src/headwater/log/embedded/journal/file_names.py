"""Names of the files that the log writes. Other files in a workspace are foreign, and are neither read nor removed."""

from __future__ import annotations

import re

from headwater.core.storage import TEMPORARY

_JOURNAL = re.compile(r"(\d{8,})\.log")
_CHECKPOINT = re.compile(r"(\d{8,})-(\d{12,})\.json")
_SEGMENT = r"\d{20}-\d+-(?:\d+\.arrow|\d+s[0-9a-f]*\.parquet(?:\.steps)?)"
_IS_SEGMENT = re.compile(f"{_SEGMENT}(?:{TEMPORARY})?")
_UNFINISHED = re.compile(rf"(?:\d{{8,}}\.log|\d{{8,}}-\d{{12,}}\.json){TEMPORARY}")
_TOPIC = re.compile(r".+-(\d+)")
_STAGED = re.compile(r"(\d{1,9})-(?:spark-)?[0-9a-f]{32}")

TOPIC_FILES = re.compile(rf"wake|\d+/{_SEGMENT}(?:{TEMPORARY})?")
"""Files in the folder of a topic."""
WAKE_FILE = re.compile("wake")
STAGED_FILES = re.compile(r"[^/]+-(?:\d+|[0-9a-f]{32})\.arrow")
"""Files in the folder of a transaction."""


def journal_number(entry: str) -> int | None:
    """Return the number of a journal from its file name; None for other files."""
    match = _JOURNAL.fullmatch(entry)
    return int(match[1]) if match else None


def checkpoint_place(entry: str) -> tuple[int, int] | None:
    """Return the journal and byte position of a checkpoint from its file name; None for other files."""
    match = _CHECKPOINT.fullmatch(entry)
    return (int(match[1]), int(match[2])) if match else None


def unfinished_by(entry: str) -> int | None:
    """Return the process that died while writing a journal or a checkpoint; None for other files."""
    match = _UNFINISHED.fullmatch(entry)
    return int(match[1]) if match else None


def is_segment(entry: str) -> bool:
    """Whether a file in the folder of a partition is a segment or its steps file, complete or not."""
    return _IS_SEGMENT.fullmatch(entry) is not None


def topic_id(folder: str) -> int | None:
    """Return the id of the topic that a folder is named after; None for other folders."""
    match = _TOPIC.fullmatch(folder)
    return int(match[1]) if match else None


def staged_by(folder: str) -> int | None:
    """Return the process whose transactions are in a folder of the staging area; None for other folders."""
    match = _STAGED.fullmatch(folder)
    return int(match[1]) if match else None
