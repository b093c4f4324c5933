"""The locks pin what pyproject.toml asks for, with hashes, and agree with each other."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headwater.core import extras
from tests.repo.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = PROJECT["dependency-groups"]
OPTIONAL = PROJECT["project"]["optional-dependencies"]
CORE = PROJECT["project"]["dependencies"] + GROUPS["build"]


def brought_by(*extras: str) -> list[str]:
    """What extras ask for; one may consist of others."""
    found: list[str] = []
    for requirement in map(Requirement, (line for extra in extras for line in OPTIONAL[extra])):
        found += (
            brought_by(*requirement.extras)
            if requirement.name == PROJECT["project"]["name"]
            else [str(requirement)]
        )
    return found


WANTED = {
    "runtime": CORE,
    "dev": CORE + GROUPS["dev"] + brought_by(*OPTIONAL),
    "demo": CORE + brought_by("demo"),
    "docs": GROUPS["build"] + GROUPS["docs"],
}


def pins(lock: str) -> dict[str, list[str]]:
    """The versions that each name is pinned to, one for each range of Pythons."""
    found: dict[str, list[str]] = {}
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    for name, version, rest in re.findall(r"^([\w.-]+)==(\S+)(.*(?:\n +--hash=.*)*)", text, re.MULTILINE):
        assert "--hash=sha256:" in rest, f"{name} has no hash in {lock}.lock: run `make lock`"
        found.setdefault(canonicalize_name(name), []).append(version)
    return found


@pytest.mark.parametrize("lock", WANTED)
def test_the_lock_pins_what_is_asked_for(lock: str) -> None:
    pinned = pins(lock)
    for requirement in map(Requirement, WANTED[lock]):
        versions = pinned.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is not in {lock}.lock: run `make lock`"
        assert all(map(requirement.specifier.contains, versions)), f"{requirement}: run `make lock`"


def test_make_demo_and_make_test_install_the_same_versions() -> None:
    assert pins("runtime").items() <= pins("demo").items() <= pins("dev").items()


def test_make_docs_changes_no_version_that_make_test_installs() -> None:
    tested = pins("dev")
    assert not {name for name, pinned in pins("docs").items() if tested.get(name, pinned) != pinned}


def test_the_core_brings_no_library_of_an_extra() -> None:
    pinned = pins("runtime")
    assert not [line for line in brought_by("all") if canonicalize_name(Requirement(line).name) in pinned]


def test_all_is_every_extra_but_the_demo() -> None:
    (every,) = map(Requirement, OPTIONAL["all"])
    assert every.extras == OPTIONAL.keys() - {"all", "demo"} == extras.EXTRAS.keys()
