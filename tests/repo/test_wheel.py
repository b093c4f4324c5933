"""The wheel, built and installed into an empty environment: the README runs there, and what needs an extra says so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.core.extras import EXTRAS, install_command
from tests.repo.tree import ROOT

UV = [sys.executable, "-m", "uv"]
TRIED = """
import json
import headwater as hw

url = "//nobody@127.0.0.1:1/0"
said = {}
with hw.open("shop") as ws:
    for extra, statement in {
        "postgres source": f"CREATE SOURCE a FROM POSTGRES WITH (url = 'postgresql:{url}')",
        "postgres": f"CREATE SINK b FROM hits INTO POSTGRES WITH (url = 'postgresql:{url}', key = 'url')",
        "redis": f"CREATE SINK c FROM hits INTO REDIS WITH (url = 'redis:{url}', key = 'url')",
        "lake": "CREATE SINK d FROM hits INTO LAKE WITH (key = 'url')",
        "search": "CREATE SINK e FROM hits INTO SEARCH WITH (key = 'url')",
        "search standing": "CREATE STANDING QUERY f ON clicks",
    }.items():
        try:
            ws.sql(statement)
        except hw.ExtraMissingError as error:
            said[extra] = error.hint
    made = [*ws.sql("SHOW SOURCES").to_pylist(), *ws.sql("SHOW SINKS").to_pylist()]
print(json.dumps({"said": said, "made": len(made), "from": hw.__file__}))
"""


def done(*command: str | Path, cwd: Path, **environ: str) -> str:
    """What a program says, which is told of nothing in the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**kept, "NO_COLOR": "1", **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def installed(place: Path) -> Path:
    """The folder of the programs of an environment with the wheel, what it asks for, and nothing else."""
    done(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place, cwd=ROOT)
    (wheel,) = place.glob("*.whl")
    done(*UV, "venv", "--python", sys.executable, place / "venv", cwd=place)
    scripts = place / "venv" / "bin"
    install: list[str | Path] = [
        *(*UV, "pip", "install", "--python", scripts / "python"),
        *("--constraint", ROOT / "requirements" / "runtime.lock"),
        *("--link-mode", "symlink", wheel),  # temporary files are in memory, and PySpark has 500 MB
    ]
    try:
        done(*install, "--offline", cwd=place)  # from what an earlier run has left in the cache of uv
    except AssertionError:
        done(*install, cwd=place)
    return scripts


@pytest.mark.slow
@pytest.mark.timeout(900)  # PySpark is fetched and built where uv has not done so before
def test_the_readme_runs_from_the_wheel_alone_and_what_needs_an_extra_says_so(tmp_path: Path) -> None:
    """One test, so that there is one installation: tests run in several processes."""
    place, reader = tmp_path / "installed", tmp_path / "reader"
    place.mkdir()
    reader.mkdir()
    scripts = installed(place)
    python = scripts / "python"

    listed = json.loads(done(*UV, "pip", "list", "--format", "json", "--python", python, cwd=reader))
    there = {package["name"] for package in listed}
    assert "pyspark" in there
    assert not there & {
        "psycopg",
        "redis",
        "pyiceberg",
        "sqlalchemy",
        "tantivy",
        "opentelemetry-sdk",
        "pytest",
    }

    # The ten lines, the commands, and the view, as somebody types them who reads.
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    page = ROOT / "tests" / "repo" / "run_page.py"
    said = done(python, page, ROOT / "README.md", cwd=reader, PATH=path)
    assert "[{'url': '/a', 'n': 2}]" in said

    told = json.loads(done(python, "-c", TRIED, cwd=reader).splitlines()[-1])
    assert Path(told["from"]).is_relative_to(place)
    assert told["said"] == {
        asked: install_command(asked.split()[0])
        for asked in ("postgres source", "postgres", "redis", "lake", "search", "search standing")
    }
    assert told["made"] == 0

    said = done(scripts / "headwater", "doctor", cwd=reader, COLUMNS="1000")
    assert "none; not installed: " in said
    assert install_command(*EXTRAS) in said
