"""Builds the documentation site into build/site: stages the pages, and has Zensical render them in strict mode.

Pages are written for a reader of the repository. On the site a link to a page of the root leads to its copy there, a link to code,
which the site does not have, becomes plain text, and lists nest by four spaces.
"""

import json
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "pages"
ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "GLOSSARY.md")
"""Pages of the root that the site has, if they are there."""
FOLDER = "project"
"""Where on the site they are."""
_FENCE = re.compile(r"^ *(?P<ticks>`{3,}|~{3,})")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^)\s]+)\)")
_ITEM = re.compile(r"^( +)(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_PATTERN = re.compile(r'"([^"\s]*\*[^"\s]*)"')


def staged() -> dict[str, Path]:
    """The pages of the site and where they come from."""
    docs = ROOT / "docs"
    found = {path.relative_to(docs).as_posix(): path for path in sorted(docs.rglob("*")) if path.is_file()}
    roots = {f"{FOLDER}/{name}": ROOT / name for name in ROOT_PAGES if (ROOT / name).exists()}
    return found | roots


def parts(text: str) -> Iterator[tuple[str, bool]]:
    """A page in parts, in order, and whether a part is prose or a fenced block."""
    part: list[str] = []
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if mark and not fence:
            yield "".join(part), True
            part, fence = [line], mark["ticks"]
            continue
        part.append(line)
        if mark and line.strip().startswith(fence) and not line.strip().strip("`~"):
            yield "".join(part), False
            part, fence = [], ""
    yield "".join(part), not fence


def for_site(text: str, name: str, source: str) -> str:
    """A page as the site has it; `name` is its place on the site, `source` that in the repository."""
    return "".join(_prose(part, name, source) if is_prose else part for part, is_prose in parts(text))


def _prose(text: str, name: str, source: str) -> str:
    code = [found.span() for found in _CODE.finditer(text)]

    def led(link: re.Match[str]) -> str:
        if any(begin <= link.start() < end for begin, end in code):
            return link[0]
        target, _, anchor = link["target"].partition("#")
        if not target or re.match(r"[a-z][a-z0-9+.-]*:", target):
            return link[0]
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if meant in ROOT_PAGES:
            place = f"{FOLDER}/{meant}"
        elif meant.startswith("docs/"):
            place = meant.removeprefix("docs/")
        else:
            return link["text"]
        there = posixpath.relpath(place, posixpath.dirname(name) or ".")
        return f"[{link['text']}]({there}{'#' + anchor if anchor else ''})"

    return _ITEM.sub(lambda item: item[1] * 2, _LINK.sub(led, text))


def expanded(config: str, pages: list[str]) -> str:
    """The configuration with the pages that patterns of the nav stand for, and where pages and site are."""

    def names(pattern: re.Match[str]) -> str:
        return ", ".join(json.dumps(name) for name in pages if Path(name).match(pattern[1]))

    where = '[project]\ndocs_dir = "pages"\nsite_dir = "site"\n'
    return _PATTERN.sub(names, config).replace("[project]\n", where, 1)


def main() -> int:
    """Stage the pages and build the site; the exit status is that of the build."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.rmtree(BUILD / "site", ignore_errors=True)
    pages = staged()
    for name, path in pages.items():
        place = PAGES / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            source = path.relative_to(ROOT).as_posix()
            place.write_text(for_site(path.read_text(encoding="utf-8"), name, source), encoding="utf-8")
        else:
            shutil.copy(path, place)
    config = BUILD / "zensical.toml"
    config.write_text(
        expanded((ROOT / "zensical.toml").read_text(encoding="utf-8"), list(pages)), encoding="utf-8"
    )
    program = Path(sys.executable).with_name("zensical")
    return subprocess.run(
        [program, "build", "--strict", "--clean", "--config-file", config], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
