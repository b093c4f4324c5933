"""Calls and words that have a better place, with that place in the message."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repo.tree import PACKAGE, ROOT, files, parsed, shown, source_text, sources

CLOCK = "take a headwater.core.clock.Clock: results and tests must not depend on the wall clock"
STORAGE = "go through headwater.core.storage: one seam to the disk is what the crash tests can fail"
TERMINAL = "only headwater.cli talks to a terminal: return the value, or raise a HeadwaterError"

# call -> (what to do instead, modules where it is at home)
BANNED_CALLS = {
    "time.time": (CLOCK, ["core/clock.py"]),
    "time.time_ns": (CLOCK, ["core/clock.py"]),
    "datetime.now": (CLOCK, ["core/clock.py"]),
    "datetime.utcnow": (CLOCK, ["core/clock.py"]),
    "datetime.today": (CLOCK, ["core/clock.py"]),
    "date.today": (CLOCK, ["core/clock.py"]),
    "open": (STORAGE, ["core/storage.py", "cli", "sources"]),  # capture reads files that are not ours
    "os.fsync": (STORAGE, ["core/storage.py"]),
    "os.fdatasync": (STORAGE, ["core/storage.py"]),
    "os.rename": (STORAGE, ["core/storage.py"]),
    "os.replace": (STORAGE, ["core/storage.py"]),
    "print": (TERMINAL, ["cli"]),
    "breakpoint": ("take it out before committing", []),
}

# Assembled, so that this file does not name what it forbids.
MACHINE_PATHS = [f"/{folder}/" for folder in ("root", "work", "home", "Users")]
REGISTRIES = [
    "py" + "pi.org",
    "python" + "hosted",
    "--index" + "-url",
    "--extra-index" + "-url",
    "registry" + ".npmjs",
]


def calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each call as `name` or `module.name`, the last two parts of what is called, with imports undone."""
    origin: dict[str, str] = {}
    defined: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origin.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name
                origin[name] = f"{node.module}.{alias.name}"
        elif isinstance(node, ast.FunctionDef):
            defined.add(node.name)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Name(id=name) if name not in defined:
                yield node.lineno, ".".join(origin.get(name, name).split(".")[-2:])
            case (
                ast.Attribute(value=ast.Name(id=owner), attr=name)
                | ast.Attribute(value=ast.Attribute(attr=owner), attr=name)
            ):
                yield node.lineno, f"{origin.get(owner, owner).split('.')[-1]}.{name}"


def test_calls_are_made_where_they_are_at_home() -> None:
    wrong = []
    for path in sources():
        inside = path.relative_to(PACKAGE)
        homes = {inside.as_posix(), inside.parts[0]}
        wrong += [
            f"{shown(path)}:{line}: {name}(): {BANNED_CALLS[name][0]}"
            for line, name in calls(parsed(path))
            if name in BANNED_CALLS and not homes & set(BANNED_CALLS[name][1])
        ]
    assert not wrong, "\n".join(wrong)


def test_a_silenced_type_error_says_which() -> None:
    wrong = [
        f"{shown(path)}:{number}: name the error: `# type: ignore[code]`"
        for path in sources()
        for number, line in enumerate(source_text(path).splitlines(), start=1)
        if re.search(r"#\s*type:\s*ignore(?!\[)", line)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_names_a_machine_or_a_registry() -> None:
    wrong = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a binary golden file
        for number, line in enumerate(text.splitlines(), start=1):
            for word in MACHINE_PATHS:
                if re.search(rf"(?<![\w.\-~>)}}]){re.escape(word)}", line):
                    wrong.append(f"{shown(path)}:{number}: {word} is a path on one machine; make it relative")
            for word in REGISTRIES:
                if word in line:
                    wrong.append(
                        f"{shown(path)}:{number}: {word}: where packages come from is the user's choice"
                    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import time\ntime.time()", "time.time"),
        ("from time import time\ntime()", "time.time"),
        ("import time as t\nt.time_ns()", "time.time_ns"),
        ("from datetime import datetime as dt\ndt.now()", "datetime.now"),
        ("import datetime\ndatetime.datetime.now()", "datetime.now"),
        ("from os import replace\nreplace(a, b)", "os.replace"),
        ("open('x')", "open"),
    ],
)
def test_a_banned_call_is_seen_through_its_imports(code: str, found: str) -> None:
    assert found in BANNED_CALLS
    assert found in {name for _, name in calls(ast.parse(code))}


@pytest.mark.parametrize(
    "code", ["def open(path): ...\nopen('x')", "storage.open('x')", "clock.now()", "a.time()"]
)
def test_what_only_looks_like_one_is_not(code: str) -> None:
    assert not {name for _, name in calls(ast.parse(code))} & set(BANNED_CALLS)


def test_the_ci_script_runs_make_test() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "set -euo pipefail" in script
    assert re.search(r"^make test$", script, re.MULTILINE)
