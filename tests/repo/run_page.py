"""Runs one page's examples top to bottom, as a reader would type them, in the current folder.

Python blocks share one namespace and keep the page's line numbers in tracebacks. Shell blocks that use the
`headwater` command run in between, in their place on the page. A fence with the word `no-run` is left out.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.repo.tree import Block, blocks

SHELLS = {"console", "shell", "bash", "sh"}
_USES_HEADWATER = re.compile(r"(^|[|;&]\s*)headwater\b", re.MULTILINE)


def is_python(block: Block) -> bool:
    return block.language == "python" and "no-run" not in block.info


def commands(block: Block) -> str:
    """The shell script of a block, or nothing if it has no use of `headwater`; output lines are left out."""
    if block.language not in SHELLS or "no-run" in block.info:
        return ""
    lines = block.text.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = list(_typed(lines))
    script = "\n".join(lines)
    return script if _USES_HEADWATER.search(script) else ""


def _typed(lines: list[str]) -> Iterator[str]:
    """What follows a prompt, `$ ` or, after a backslash, `> `."""
    prompt = "$ "
    for line in lines:
        if line.startswith(prompt):
            yield line.removeprefix(prompt)
            prompt = "> " if line.endswith("\\") else "$ "


def run(page: Path, shell: Callable[[str], int], known: Mapping[str, str] | None = None) -> None:
    """Run the examples of a page; `shell` runs a script and says with which status it ended. What is `known` are names that
    its Python has already."""
    namespace = {"__name__": "__main__", **(known or {})}
    for block in blocks(page):
        if is_python(block):
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, namespace)
        elif script := commands(block):
            sys.stdout.flush()
            if status := shell(script):
                sys.exit(f"{page}:{block.line}: exit status {status} from:\n{script}")


def _bash(script: str) -> int:
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode


if __name__ == "__main__":
    run(Path(sys.argv[1]), _bash)
