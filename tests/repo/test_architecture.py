"""ARCHITECTURE.md names what is in src/headwater, no more and no less, and every module has its use."""

import ast
import re
import tomllib

import grimp

from headwater.catalog.connector_kinds import SINK_KINDS, SOURCE_KINDS
from tests.repo.tree import PACKAGE, ROOT, module_name, parsed, shown, source_text, sources

LINES_MAX = 700
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}

# Modules that nothing in the package imports, because someone else does.
ENTRANCES = {
    "headwater": "what users import",
    "headwater.catalog.system_relations": "scripts/reference.py, which writes docs/reference",
    "headwater.web.problem_types": "scripts/reference.py, which writes docs/reference",
    "headwater.engine.dataflow.python_worker": "Spark, which starts it by its name",
    "headwater.spark_datasource.datasource": "Spark, through the package pyspark_headwater",
}


def test_the_architecture_lists_what_is_there() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(listed) == len(set(listed)), "a row stands twice in ARCHITECTURE.md"
    there = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    there |= {f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert there - set(listed) == set(), "in src/headwater, but not in the table of ARCHITECTURE.md"
    assert set(listed) - there == set(), "in the table of ARCHITECTURE.md, but not in src/headwater"


def test_no_module_is_dead() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entrances = set(ENTRANCES) | {target.split(":")[0] for target in project["scripts"].values()}
    graph = grimp.build_graph("headwater", cache_dir=None)
    entrances |= {
        name for name in graph.modules if name.startswith("headwater.testing")
    }  # for users' own tests
    entrances |= {kind.made_by.split(":")[0] for kind in (*SOURCE_KINDS.values(), *SINK_KINDS.values())}
    dead = []
    for path in sources():
        name = module_name(path)
        below = {name} | graph.find_descendants(name)
        users = {user for module in below for user in graph.find_modules_that_directly_import(module)} - below
        if not users and not below & entrances and path.stem != "__main__":
            dead.append(shown(path))
    assert not dead, f"nothing imports {', '.join(dead)}: remove it, or name its user in ENTRANCES"


def test_a_module_has_a_docstring_few_lines_and_a_name_that_says_what_it_holds() -> None:
    wrong = []
    for path in sources():
        if not ast.get_docstring(parsed(path)):
            wrong.append(f"{shown(path)}: begin with one sentence: what this module is, and what it is not")
        if source_text(path).count("\n") > LINES_MAX:
            wrong.append(f"{shown(path)}: more than {LINES_MAX} lines are two modules")
        if vague := VAGUE_NAMES & {*path.relative_to(PACKAGE).parts[:-1], path.stem}:
            wrong.append(f"{shown(path)}: {vague} says nothing; name it after what it holds")
    assert not wrong, "\n".join(wrong)


def test_every_folder_is_a_package() -> None:
    folders = sorted({path.parent for path in sources()})
    wrong = [shown(folder) for folder in folders if not (folder / "__init__.py").exists()]
    assert not wrong, f"an __init__.py that says what the package is, is missing in {', '.join(wrong)}"
