"""What README.md and docs/ show is run."""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from headwater.cli.program import cli
from tests.postgres import postgres_server, postgres_url
from tests.redis import redis_server, redis_url
from tests.repo.run_page import SHELLS, commands, is_python, run
from tests.repo.tree import ROOT, blocks, markdown, shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["postgres_server", "postgres_url", "redis_server", "redis_url"]

README = ROOT / "README.md"
ALONE = [README, ROOT / "docs" / "spark.md"]
"""What a reader types first, in a shell; and the page that has a Spark session of its own."""
PAGES = [page for page in markdown() if page == README or page.is_relative_to(ROOT / "docs")]
SERVERS = {"SHOP_URL": "postgres_url", "CACHE_URL": "redis_url"}
"""What pages call the servers that they need, as variables of the environment and of Python."""
RUNNABLE = [page for page in PAGES if any(is_python(block) or commands(block) for block in blocks(page))]


@pytest.mark.parametrize("page", [page for page in RUNNABLE if page not in ALONE], ids=shown)
def test_the_examples_of_a_page_run(
    page: Path,
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """In this process, because of the seconds that Spark takes to start; with the servers that it names."""
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    known = {name: request.getfixturevalue(server) for name, server in SERVERS.items() if name in text}
    for name, url in known.items():
        monkeypatch.setenv(name, url)
    with patch.dict(os.environ):  # variables that a page sets are its own
        run(page, _headwater, known)


def _headwater(script: str) -> int:
    """Commands of `headwater` alone, one a line."""
    for line in script.splitlines():
        program, *arguments = shlex.split(os.path.expandvars(line))
        assert program == "headwater", f"this page is not run in a shell: {line}"
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        print(result.output)
        if result.exit_code:
            return result.exit_code
    return 0


@pytest.mark.slow
@pytest.mark.parametrize("page", ALONE, ids=shown)
def test_the_examples_of_a_page_run_in_a_process_of_their_own(page: Path, tmp_path: Path) -> None:
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
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_readme_has_an_example() -> None:
    assert README in RUNNABLE


def test_only_signatures_are_left_unrun() -> None:
    wrong = []
    for page in PAGES:
        for block in blocks(page):
            if block.language == "py":
                wrong.append(f"{shown(page)}:{block.line}: fence it as ```python, so that it is run")
            if block.language == "python" and "no-run" in block.info and not _is_signatures(block.text):
                wrong.append(
                    f"{shown(page)}:{block.line}: `no-run` is for signatures; make this an example that runs"
                )
    assert not wrong, "\n".join(wrong)


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
