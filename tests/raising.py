"""Errors as facts: a test names the class of an error (and so its code) and its facts, never its wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater import HeadwaterError


@contextmanager
def raises(kind: type[HeadwaterError], /, **facts: Any) -> Iterator[pytest.ExceptionInfo[HeadwaterError]]:
    """The block raises an error of exactly this class that has at least these facts."""
    with pytest.raises(kind) as caught:
        yield caught
    error = caught.value
    assert type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}"
    actual = {name: error.facts.get(name) for name in facts}
    assert actual == facts, f"{error!r} has the facts {error.facts}"
