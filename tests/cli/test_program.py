"""The program as a shell starts it: quick to start, quiet when its pipe closes, clean when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headwater as hw
from headwater.cli.live_progress import leaving_at_once

COMMAND = [sys.executable, "-m", "headwater"]
ROWS = 50_000
VIEW = "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "w"
    with hw.open(path, durability="os") as ws:
        ws.topic("clicks", "user BIGINT, url STRING").append(
            [{"user": n, "url": f"/{n}"} for n in range(ROWS)]
        )
    return path


def started(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "HEADWATER_WORKSPACE": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(*arguments: str, folder: Path, stdin: str = "") -> tuple[int, str, str]:
    process = started(*arguments, folder=folder)
    out, err = process.communicate(stdin, timeout=60)
    return process.returncode, out, err


def test_version_and_help(folder: Path) -> None:
    assert finished("--version", folder=folder) == (0, f"headwater {hw.__version__}\n", "")
    status, out, _ = finished("--help", folder=folder)
    assert status == 0
    for command in (
        "init",
        "topics",
        "append",
        "tail",
        "lag",
        "cursors",
        "maintain",
        "verify",
        "sql",
        "run",
        "views",
        "status",
        "rebuild",
        "doctor",
    ):
        assert f"  {command} " in out


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["tail", "--help"], ["completion", "bash"]])
def test_what_needs_no_data_loads_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom headwater.cli.program import cli\n"
        f"cli({arguments!r}, standalone_mode=False)\n"
        "print(sorted({'pyarrow', 'numpy', 'sqlglot', 'rich', 'orjson'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_errors_go_to_stderr_without_a_traceback(folder: Path) -> None:
    status, out, err = finished("sql", "SELEC 1", folder=folder)
    assert (status, out) == (2, "")
    assert err.startswith("error: no statement begins with 'SELEC'\ndetail: line 1, column 1\n")
    assert "\nhint: " in err


def test_a_closed_pipe_is_no_error(folder: Path) -> None:
    process = started("tail", "clicks", "--from", "earliest", folder=folder)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("0@0 ")
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(60) == 0
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


def test_tail_follows_another_process_until_ctrl_c(folder: Path) -> None:
    process = started("tail", "clicks", "--follow", "-n", "1", "--json", folder=folder)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["user"] == ROWS - 1
    assert (
        finished("append", "clicks", "-", "--format", "json", folder=folder, stdin='{"user": -1}\n')[0] == 0
    )
    assert json.loads(process.stdout.readline())["user"] == -1
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")


def test_progress_without_a_terminal_is_plain(folder: Path) -> None:
    lines = "".join(f'{{"user": {n}}}\n' for n in range(100))
    status, out, err = finished("append", "clicks", "-", "--format", "json", folder=folder, stdin=lines)
    assert (status, out, err) == (0, "appended 100 rows to clicks\n", "")


def test_a_trickle_through_a_pipe_is_not_held_back(tmp_path: Path) -> None:
    path = tmp_path / "w"
    with hw.open(path, durability="os") as ws:
        reader = ws.topic("t", "a INT").read(follow=True)
        process = started("append", "t", "-", folder=path)
        assert process.stdin is not None
        for number in range(3):
            process.stdin.write(json.dumps({"a": number}) + "\n")
            process.stdin.flush()
            assert next(reader).column("a").to_pylist() == [number]
        process.stdin.close()
        assert process.wait(60) == 0
        reader.close()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def test_help_says_what_the_exit_status_means(folder: Path) -> None:
    assert "130 interrupted" in " ".join(finished("--help", folder=folder)[1].split())


@pytest.mark.parametrize("asked", [["run", "v.sql"], ["sql", VIEW]])
def test_ctrl_c_while_spark_starts_is_a_short_line(asked: list[str], tmp_path: Path) -> None:
    """Whoever talks to the JVM then makes a noise about anything that comes up: nothing must come up."""
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.sql("CREATE TOPIC t (a INT)")
    (tmp_path / "v.sql").write_text(VIEW)
    script = (
        "import signal, sys\n"
        "from headwater.spark import spark_session\n"
        "def start():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    finally:\n"
        "        print('noise')\n"
        "spark_session._start = start\n"
        f"sys.argv = ['headwater', '-w', 'w', *{asked!r}]\n"
        "from headwater.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    said = [line for line in done.stderr.splitlines() if line != "starting Spark ..."]
    assert (done.returncode, done.stdout, said) == (130, "", ["interrupted"])
    with hw.open(tmp_path / "w") as ws:
        assert ws.log.entries("view") == {}


def test_after_spark_has_started_ctrl_c_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with leaving_at_once():
        assert signal.getsignal(signal.SIGINT) is not before
        signal.signal(signal.SIGINT, lambda *_: None)  # as Spark does
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_an_import_is_quiet(folder: Path) -> None:
    script = (
        "import signal, sys\n"
        "class Press:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'headwater.cli.commands.doctor': signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Press())\n"
        "sys.argv = ['headwater', 'topics']\n"
        "from headwater.cli import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
