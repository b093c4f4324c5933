"""Runs one page's examples top to bottom, as a reader would type them, in the current folder.

Python blocks share one namespace and keep the page's line numbers in tracebacks. Shell blocks that use the
`headwater` command run in between, in their place on the page. A fence with the word `no-run` is left out.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
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


def main(page: Path) -> None:
    namespace = {"__name__": "__main__"}
    for block in blocks(page):
        if is_python(block):
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, namespace)
        elif script := commands(block):
            sys.stdout.flush()
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", script], stdin=subprocess.DEVNULL, timeout=120, check=False
            )
            if done.returncode:
                sys.exit(f"{page}:{block.line}: exit status {done.returncode} from:\n{script}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
