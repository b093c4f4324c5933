"""Names of the files that the log writes. A file of any other name in a workspace is somebody else's, and is neither read nor removed."""

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
"""What is in the folder of a topic."""
WAKE_FILE = re.compile("wake")
STAGED_FILES = re.compile(r"[^/]+-(?:\d+|[0-9a-f]{32})\.arrow")
"""What is in the folder of a transaction."""


def journal_number(entry: str) -> int | None:
    """The number of a journal by the name of its file; None of other files."""
    match = _JOURNAL.fullmatch(entry)
    return int(match[1]) if match else None


def checkpoint_place(entry: str) -> tuple[int, int] | None:
    """The journal and the byte of it that a checkpoint stands at; None of other files."""
    match = _CHECKPOINT.fullmatch(entry)
    return (int(match[1]), int(match[2])) if match else None


def unfinished_by(entry: str) -> int | None:
    """The process that was writing a journal or a checkpoint when it died; None of other files."""
    match = _UNFINISHED.fullmatch(entry)
    return int(match[1]) if match else None


def is_segment(entry: str) -> bool:
    """Whether a file in the folder of a partition is a segment, or the steps of one, written to the end or not."""
    return _IS_SEGMENT.fullmatch(entry) is not None


def topic_id(folder: str) -> int | None:
    """The id of the topic that a folder is named after; None of other folders."""
    match = _TOPIC.fullmatch(folder)
    return int(match[1]) if match else None


def staged_by(folder: str) -> int | None:
    """The process whose transactions are in a folder of the staging area; None of other folders."""
    match = _STAGED.fullmatch(folder)
    return int(match[1]) if match else None
