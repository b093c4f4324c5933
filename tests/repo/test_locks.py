"""The locks pin what pyproject.toml asks for, with hashes, and agree with each other."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.repo.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GROUPS = PROJECT["dependency-groups"]
WANTED = {
    "runtime": PROJECT["project"]["dependencies"] + GROUPS["build"],
    "dev": PROJECT["project"]["dependencies"]
    + GROUPS["build"]
    + GROUPS["dev"]
    + PROJECT["project"]["optional-dependencies"]["otel"],
    "demo": PROJECT["project"]["dependencies"]
    + GROUPS["build"]
    + PROJECT["project"]["optional-dependencies"]["demo"],
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
