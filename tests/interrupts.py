"""Ctrl-C at any line: what an interrupt may leave in the middle, without waiting for one to come there."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


def interrupted(call: Callable[[], object], chance: random.Random, within: ModuleType) -> None:
    """Call something, and interrupt it at one of the lines of a module or package, as Ctrl-C would, unless it is over before."""
    assert within.__file__ is not None
    file = Path(within.__file__)
    where = str(file.parent if file.name == "__init__.py" else file)
    left = chance.randint(1, chance.choice([10, 100, 400]))

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(where) or frame.f_code.co_flags & CO_GENERATOR:
            return None  # what a generator meets as it is let go of, nobody hears of
        left -= event == "line"
        if not left:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # that of `make coverage`
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            call()
    finally:
        sys.settrace(before)
