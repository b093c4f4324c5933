"""The nav of the documentation site has every page, and links lead to where the site has what they mean. The site is not built here."""

import importlib.util
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.repo.tree import ROOT, markdown, shown

_spec = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts" / "docs_site.py")
assert _spec is not None
assert _spec.loader is not None
docs_site = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(docs_site)


def in_nav(nav: list[Any]) -> Iterator[str]:
    """The pages of a nav, in order."""
    for entry in nav:
        if isinstance(entry, dict):
            for below in entry.values():
                yield from in_nav(below)
        else:
            yield entry


def pages() -> list[str]:
    text = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    return list(in_nav(tomllib.loads(docs_site.expanded(text, list(docs_site.staged())))["project"]["nav"]))


def test_every_page_of_the_docs_is_in_the_nav_once() -> None:
    counted = Counter(pages())
    docs = [page for page in markdown() if page.is_relative_to(ROOT / "docs")]
    lost = [shown(page) for page in docs if not counted[page.relative_to(ROOT / "docs").as_posix()]]
    assert not lost, f"add to the nav of zensical.toml: {', '.join(lost)}"
    assert not [name for name, count in counted.items() if count > 1]


def test_every_page_of_the_nav_is_there() -> None:
    assert not set(pages()) - set(docs_site.staged())


def test_the_site_is_not_committed() -> None:
    assert "build/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    ("source", "written", "shown_as"),
    [
        ("docs/log.md", "[a](views.md#sql)", "[a](views.md#sql)"),
        ("docs/log.md", "[a](../ARCHITECTURE.md)", "[a](project/ARCHITECTURE.md)"),
        ("docs/formats/state.md", "[a](../../CHANGELOG.md#x)", "[a](../project/CHANGELOG.md#x)"),
        ("ARCHITECTURE.md", "[a](docs/log.md)", "[a](../log.md)"),
        ("ARCHITECTURE.md", "[a](CONTRIBUTING.md)", "[a](CONTRIBUTING.md)"),
        ("docs/log.md", "[`a`](../src/headwater/log/topic.py)", "`a`"),
        ("docs/log.md", "[a\nb](../tests/sinks)", "a\nb"),
        ("docs/log.md", "[a](#durability)", "[a](#durability)"),
        ("docs/log.md", "[a](https://a.example/b)", "[a](https://a.example/b)"),
        ("docs/log.md", "`[a](../src)`", "`[a](../src)`"),
        ("docs/log.md", "```\n[a](../src)\n  - b\n```\n", "```\n[a](../src)\n  - b\n```\n"),
        ("docs/log.md", "- a\n  - b\n", "- a\n    - b\n"),
    ],
)
def test_a_link_leads_to_its_place_on_the_site(source: str, written: str, shown_as: str) -> None:
    name = source.removeprefix("docs/") if source.startswith("docs/") else f"{docs_site.FOLDER}/{source}"
    assert docs_site.for_site(written, name, source) == shown_as
