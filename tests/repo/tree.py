"""The repository as its tests see it: which files it has, and the Markdown and Python in them."""

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "headwater"

_MADE = {
    ".venv",
    ".hypothesis",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "__pycache__",
    "build",
    "dist",
}
_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,}|~{3,})(?P<info>[^`]*)$")


@cache
def files() -> tuple[Path, ...]:
    """Every file that is, or would be, committed; outside a git checkout, every file that no tool has made."""
    if shutil.which("git"):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if listed.returncode == 0:
            paths = (ROOT / name for name in listed.stdout.split("\0") if name)
            return tuple(sorted(path for path in paths if path.is_file()))
    found = (path for path in ROOT.rglob("*") if not _MADE & {*path.relative_to(ROOT).parts})
    return tuple(sorted(path for path in found if path.is_file()))


def markdown() -> list[Path]:
    """The pages that people read."""
    return [path for path in files() if path.suffix == ".md"]


@cache
def sources() -> tuple[Path, ...]:
    """The modules of the package."""
    return tuple(sorted(path for path in PACKAGE.rglob("*.py")))


@cache
def source_text(path: Path) -> str:
    """The text of a module, read once."""
    return path.read_text(encoding="utf-8")


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module, parsed once. Nobody changes it."""
    return ast.parse(source_text(path))


def module_name(path: Path) -> str:
    """`src/headwater/log/__init__.py` is `headwater.log`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def shown(path: Path) -> str:
    """A path for messages and test names."""
    return path.relative_to(ROOT).as_posix()


@dataclass(frozen=True)
class Block:
    """A fenced block: `line` is the number of its first line of content, `info` the words after the fence."""

    line: int
    info: tuple[str, ...]
    text: str

    @property
    def language(self) -> str:
        return self.info[0] if self.info else ""


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    fence, info, indent, first = "", (), 0, 0
    content: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        mark = _FENCE.match(line)
        if not fence and mark:
            fence, info, indent = mark["ticks"], tuple(mark["info"].split()), len(mark["indent"])
            content, first = [], number + 1
        elif fence and mark and mark["ticks"].startswith(fence) and not mark["info"].strip():
            yield Block(first, info, "\n".join(content))
            fence = ""
        elif fence:
            content.append(line[indent:] if line[:indent].isspace() else line)
    if fence:
        raise ValueError(f"{shown(page)}:{first - 1}: this fence is never closed")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page outside fenced blocks."""
    inside = {n for block in blocks(page) for n in _lines_of(block)}
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if number not in inside:
            yield number, line


def _lines_of(block: Block) -> range:
    return range(block.line - 1, block.line + (block.text.count("\n") + 1 if block.text else 0) + 1)
