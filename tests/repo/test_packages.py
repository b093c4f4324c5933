"""The package tree: few folders of few files, one meaning for each name, and a list of its files at the head of each package."""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

from tests.repo.tree import PACKAGE, ROOT, parsed, shown, sources

FOLDERS_MAX = 24
FILES_MAX = 25
# Modules that sibling packages have by design: the same part of another kind.
SHARED_NAMES = {"__init__", "base", "options", "registry", "target", "versions"}

PACKAGES = sorted({path.parent for path in sources()} - {PACKAGE})


def contract(identity: str) -> list[list[str]]:
    """The layers of an import contract, from the top down, each with its modules."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    (found,) = (c for c in tool["importlinter"]["contracts"] if c["id"] == identity)
    return [[name.strip() for name in re.split(r"[|:]", layer)] for layer in found["layers"]]


def listed(package: Path) -> list[str]:
    """The files and folders that the docstring of a package names, in its order."""
    docstring = ast.get_docstring(parsed(package / "__init__.py")) or ""
    return re.findall(r"^    ([a-z_0-9]+/?)  +\S", docstring, re.MULTILINE)


def there(package: Path) -> set[str]:
    """The files and folders that a package has."""
    files = {path.stem for path in package.glob("*.py")} - {"__init__"}
    return files | {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()}


def test_the_architecture_is_in_the_order_of_the_imports() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = [
        name.removesuffix(".py").rstrip("/") for name in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    ]
    for layer in contract("layers"):
        assert set(rows[: len(layer)]) == set(layer), (
            "the table and the import contract differ in their order"
        )
        del rows[: len(layer)]
    assert not rows


def test_there_are_few_folders_at_the_top() -> None:
    assert len([package for package in PACKAGES if package.parent == PACKAGE]) <= FOLDERS_MAX


def test_a_package_lists_its_files() -> None:
    wrong = {shown(package): sorted({*listed(package)} ^ there(package)) for package in PACKAGES}
    assert {package: names for package, names in wrong.items() if names} == {}, (
        "the docstring of a package names each of its files and folders, and no other"
    )
    assert all(len(listed(package)) == len({*listed(package)}) for package in PACKAGES)


def test_a_package_has_few_files() -> None:
    sizes = {shown(package): len(list(package.glob("*.py"))) - 1 for package in PACKAGES}
    assert {package: size for package, size in sizes.items() if size > FILES_MAX} == {}


def test_no_two_public_classes_have_one_name() -> None:
    homes = defaultdict(list)
    for path in sources():
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(shown(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_no_two_modules_of_a_package_have_one_name() -> None:
    names: dict[str, Counter[str]] = defaultdict(Counter)
    for path in sources():
        names[path.relative_to(PACKAGE).parts[0]][path.stem] += 1
    twice = {
        package: [name for name, count in counter.items() if count > 1 and name not in SHARED_NAMES]
        for package, counter in names.items()
    }
    assert {package: found for package, found in twice.items() if found} == {}
