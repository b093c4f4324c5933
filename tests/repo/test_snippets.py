"""What README.md and docs/ show is run."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.run_page import SHELLS, commands, is_python
from tests.repo.tree import ROOT, blocks, markdown, shown

PAGES = [page for page in markdown() if page.name == "README.md" or page.is_relative_to(ROOT / "docs")]
RUNNABLE = [page for page in PAGES if any(is_python(block) or commands(block) for block in blocks(page))]


@pytest.mark.parametrize("page", RUNNABLE, ids=shown)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    assert (scripts / "headwater").exists(), "the console script is not installed: run `make check`"
    environ = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "repo" / "run_page.py", page],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{shown(page)}\n{done.stdout}\n{done.stderr}"


def test_the_readme_has_an_example() -> None:
    assert ROOT / "README.md" in RUNNABLE


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_only_signatures_are_left_unrun(page: Path) -> None:
    for block in blocks(page):
        assert block.language != "py", f"{shown(page)}:{block.line}: fence it as ```python, so that it is run"
        if block.language == "python" and "no-run" in block.info:
            assert _is_signatures(block.text), (
                f"{shown(page)}:{block.line}: `no-run` is for signatures; make this an example that runs"
            )


def _is_signatures(text: str) -> bool:
    """Whether a block is definitions alone, with nothing in them but docstrings, `...` and annotations."""
    return all(_is_signature(node) for node in ast.parse(text).body)


def _is_signature(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return all(_is_signature(inner) for inner in node.body)
        case ast.Expr(value=ast.Constant()) | ast.AnnAssign(value=None) | ast.Pass():
            return True
        case _:
            return False


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("$ headwater topics\nclicks\n", "headwater topics"),
        ("$ headwater topics \\\n> --json\n[]", "headwater topics \\\n--json"),
        ("headwater topics", "headwater topics"),
        ("echo '{}' | headwater append clicks -", "echo '{}' | headwater append clicks -"),
        ("make demo", ""),
        ("pip install headwater", ""),
    ],
)
def test_a_shell_block_runs_what_was_typed(tmp_path: Path, text: str, script: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```console\n{text}\n```\n")
    (block,) = blocks(page)
    assert block.language in SHELLS
    assert commands(block) == script
