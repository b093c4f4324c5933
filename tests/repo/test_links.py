"""Links between pages lead somewhere. Nothing is fetched."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from tests.repo.tree import ROOT, markdown, prose, shown

_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+[\"'][^)]*)?\)")
_REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s+<?([^\s>]+)>?")
_HREF = re.compile(r"<a\s[^>]*href=[\"']([^\"']+)[\"']")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
_ANCHOR = re.compile(r"<[^>]+\s(?:id|name)=[\"']([^\"']+)[\"']")
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The names that a link can end in, as GitHub makes them from headings."""
    found: set[str] = set()
    seen: dict[str, int] = {}
    for _, line in prose(page):
        found.update(_ANCHOR.findall(line))
        if heading := _HEADING.match(line):
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).replace("`", "")
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
    return frozenset(found)


def links(page: Path) -> list[tuple[int, str]]:
    """The targets of a page with their line numbers, code left out."""
    found = []
    for number, line in prose(page):
        text = _CODE.sub("", line)
        found += [(number, target) for rule in (_INLINE, _REFERENCE, _HREF) for target in rule.findall(text)]
    return found


def problem(page: Path, target: str) -> str | None:
    """What is wrong with a link, or None."""
    if _SCHEME.match(target):
        return "a link to a file on one machine" if target.startswith("file:") else None
    name, _, anchor = target.partition("#")
    if name.startswith("/"):
        return "make it relative to the page"
    path = (page.parent / unquote(name)).resolve() if name else page
    if not path.is_relative_to(ROOT) or not path.exists():
        return "no such file"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"no such heading; there are {', '.join(sorted(anchors(path)))}"
    return None


def test_links_lead_somewhere() -> None:
    wrong = [
        f"{shown(page)}:{number}: {target}: {why}"
        for page in markdown()
        for number, target in links(page)
        if (why := problem(page, target))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_page_of_the_docs_is_in_an_index() -> None:
    """docs/README.md leads, over the indexes it links to, to every page below it."""
    docs = ROOT / "docs"
    reached, waiting = set(), [docs / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        targets = (target.partition("#")[0] for _, target in links(page) if not _SCHEME.match(target))
        waiting += [(page.parent / unquote(name)).resolve() for name in targets if name]
    lost = [shown(page) for page in markdown() if page.is_relative_to(docs) and page not in reached]
    assert not lost, f"no index leads to {', '.join(lost)}: link it from docs/README.md"


def test_every_decision_is_in_the_index_and_named_as_they_are() -> None:
    index = ROOT / "docs" / "decisions" / "README.md"
    records = {page.name for page in index.parent.glob("*.md")} - {"README.md"}
    misnamed = [name for name in records if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", name)]
    assert not misnamed, f"a decision record is called NNNN-what-was-decided.md: {misnamed}"
    numbers = [name[:4] for name in records]
    assert len(numbers) == len(set(numbers)), "two decision records have one number"
    listed = {target for _, target in links(index)}
    assert records <= listed, f"missing in {shown(index)}: {sorted(records - listed)}"
