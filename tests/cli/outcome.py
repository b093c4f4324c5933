"""What a command reports of an error: its code, which is stable, instead of its wording."""

from __future__ import annotations

import re

from click.testing import Result

_CODE = re.compile(r"^code: (\S+) ", re.MULTILINE)


def code_of(result: Result) -> str | None:
    """The code of the error that a command printed; None if it printed none."""
    found = _CODE.search(result.stderr)
    return None if found is None else found[1]
