"""docs/error-codes.md lists every error class with its code, and codes are unique."""

from __future__ import annotations

import re

from headwater.core import errors
from headwater.core.errors import HeadwaterError
from tests.repo.tree import ROOT

PAGE = ROOT / "docs" / "error-codes.md"
ROW = re.compile(r"^\| `([a-z-]+)` \| `(\w+)` \| (.+) \| (.+) \|$", re.MULTILINE)


def classes() -> list[type[HeadwaterError]]:
    """Every public error class but the root."""
    found = [value for name, value in vars(errors).items() if isinstance(value, type) and name[0] != "_"]
    return [each for each in found if issubclass(each, HeadwaterError) and each is not HeadwaterError]


def test_every_error_class_has_a_code_of_its_own() -> None:
    inherited = [each.__name__ for each in classes() if "code" not in vars(each)]
    assert not inherited, f"give these a `code`: {inherited}"
    codes = [each.code for each in classes()]
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", code) for code in codes)


def test_the_page_lists_every_code_with_a_cause_and_what_to_do() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert {code: name for code, name, _, _ in rows} == {each.code: each.__name__ for each in classes()}
    assert len(rows) == len(classes())
