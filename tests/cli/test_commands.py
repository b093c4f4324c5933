"""Commands in this process: what they print, in which form, and their exit status."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.program import cli
from headwater.core.errors import DiskFullError
from headwater.core.storage import File
from headwater.log.topic import Topic
from tests.cli.outcome import code_of

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on a workspace in a temporary folder."""
    monkeypatch.delenv("HEADWATER_WORKSPACE", raising=False)
    hw.open(tmp_path / "w", durability="os").close()

    def invoke(*arguments: str, status: int = 0, stdin: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(
            cli, ["-w", str(tmp_path / "w"), *arguments], input=stdin, catch_exceptions=False
        )
        assert result.exit_code == status, result.output
        return result

    return invoke


@pytest.fixture
def clicks(run: Run) -> None:
    run(
        "sql",
        "CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP) WITH (partitions = 2, partition_by = 'user')",
    )


LINES = "".join(
    json.dumps({"user": n, "url": f"/{n}", "at": "2026-01-31T12:00:00Z"}) + "\n" for n in range(25)
)


def listed(result: Result) -> Any:
    return json.loads(result.stdout)


def test_init_makes_a_workspace_and_says_what_is_next(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["init", str(tmp_path / "new")])
    assert result.exit_code == 0
    assert "CREATE TOPIC" in result.stdout
    assert CliRunner().invoke(cli, ["-w", str(tmp_path / "new"), "topics"]).stdout.startswith("no topics yet")


def test_no_workspace_is_an_error_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWATER_WORKSPACE", raising=False)
    result = CliRunner().invoke(cli, ["topics"])
    assert result.exit_code == 1
    assert code_of(result) == "not-a-workspace" or code_of(result) == "workspace-missing"
    assert "-w PATH" in result.stderr


def test_the_environment_names_the_workspace(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("sql", "CREATE TOPIC t (a INT)")
    monkeypatch.setenv("HEADWATER_WORKSPACE", str(tmp_path / "w"))
    assert "t " in CliRunner().invoke(cli, ["topics"]).stdout


def test_sql(run: Run) -> None:
    assert run("sql", "CREATE TOPIC t (a INT)").stdout == "done\n"
    assert listed(run("sql", "--json", "DESCRIBE t"))[0]["type"] == "INT"
    explained = run("sql", "-", stdin="EXPLAIN t").stdout
    assert explained.splitlines()[0].split() == ["topic", "t"]
    assert "\nstatement\n  CREATE TOPIC t (" in explained


def test_a_wrong_statement_is_wrong_usage(run: Run) -> None:
    result = run("sql", "CREATE TOPIC t (a FROG)", status=2)
    assert code_of(result) == "statement"
    assert "FROG)\n" in result.stderr
    assert "^^^^" in result.stderr
    assert "hint: " in result.stderr


def test_other_errors_are_failures(run: Run) -> None:
    result = run("tail", "nothing", status=1)
    assert code_of(result) == "topic-not-found"
    assert "Traceback" not in result.output


def test_a_missing_argument_is_wrong_usage(run: Run) -> None:
    run("tail", status=2)
    run("frobnicate", status=2)


@pytest.mark.usefixtures("clicks")
def test_listings_take_json(run: Run) -> None:
    run("append", "clicks", "-", "--format", "json", stdin=LINES)
    (topic,) = listed(run("topics", "--json"))
    assert (topic["topic"], topic["rows"]) == ("clicks", 25)
    assert "clicks" in run("topics").stdout
    assert run("cursors").stdout == "no cursors yet\n"
    assert listed(run("cursors", "--json")) == []
    assert listed(run("lag", "--json"))["cursors"] == []
    assert listed(run("maintain", "--json"))["seconds"] >= 0
    assert listed(run("verify", "--json"))["ok"]
    assert run("verify").stdout.startswith("no differences")


@pytest.mark.usefixtures("clicks")
def test_lag_shows_each_cursor_and_the_disk(run: Run, tmp_path: Path) -> None:
    with hw.open(tmp_path / "w") as ws:
        ws.topic("clicks").cursor("mailer")
    run("append", "clicks", "-", "--format", "json", stdin=LINES)
    lines = run("lag").stdout.splitlines()
    assert lines[1].split()[:3] == ["mailer", "clicks", "25"]
    assert lines[-1].startswith("disk: ")
    assert listed(run("cursors", "--json"))[0]["lag_rows"] == 25


@pytest.mark.usefixtures("clicks")
def test_verify_reports_damage(run: Run, tmp_path: Path) -> None:
    run("append", "clicks", "-", "--format", "json", stdin=LINES * 200)
    run("maintain")
    (file, *_) = sorted((tmp_path / "w" / "topics").rglob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    result = run("verify", status=1)
    assert file.name in result.stdout
    assert not listed(run("verify", "--json", status=1))["ok"]


@pytest.mark.usefixtures("clicks")
def test_maintain_does_what_it_can_and_names_what_failed(run: Run, tmp_path: Path) -> None:
    run("append", "clicks", "-", "--format", "json", stdin=LINES * 200)
    (file, *_) = sorted((tmp_path / "w" / "topics").rglob("*.arrow"))
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] + b"\xff" * 8 + whole[len(whole) // 2 + 8 :])
    result = run("maintain", status=1)
    assert "sealed 1 segments" in result.stdout
    assert "sealing of clicks-0 failed" in result.stderr
    assert "headwater verify" in result.stderr
    (failed,) = json.loads(run("maintain", "--json", status=1).stdout)["failed"]
    assert failed["work"] == "sealing of clicks-0"
    file.write_bytes(whole)
    assert "sealed 1 segments" in run("maintain").stdout


@pytest.mark.usefixtures("clicks")
def test_tail(run: Run) -> None:
    run("append", "clicks", "-", "--format", "json", "--chunk-rows", "5", stdin=LINES)
    assert len(run("tail", "clicks").stdout.splitlines()) == 10
    last = [json.loads(line) for line in run("tail", "clicks", "-n", "3", "--json").stdout.splitlines()]
    assert len(last) == 3
    assert {row["user"] for row in last} <= set(range(20, 25))
    assert last[0]["at"] == "2026-01-31T12:00:00Z"
    assert run("tail", "clicks", "-n", "0").stdout == ""
    assert len(run("tail", "clicks", "--from", "earliest").stdout.splitlines()) == 25
    assert run("tail", "clicks", "--from", "latest").stdout == ""
    (line, *_) = run("tail", "clicks", "--from", "1@2").stdout.splitlines()
    assert line.startswith("1@2 ")
    assert len(run("tail", "clicks", "--from", "2020-01-01T00:00:00Z").stdout.splitlines()) == 25
    assert code_of(run("tail", "clicks", "--from", "tuesday", status=2)) == "bad-request"


def test_what_tail_prints_append_takes(run: Run) -> None:
    columns = (
        "id BIGINT PRIMARY KEY, yes BOOLEAN, small TINYINT, f FLOAT, price DECIMAL(20,4), name STRING, raw BINARY, "
        "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, tags ARRAY<DECIMAL(5,1)>, counts MAP<STRING, DOUBLE>, "
        "days MAP<DATE, INT>, place STRUCT<x: DOUBLE, when: TIMESTAMP, inner: ARRAY<STRUCT<b: BINARY>>>"
    )
    run("sql", f"CREATE TOPIC a ({columns}); CREATE TOPIC b ({columns})")
    row = {
        "id": 1, "yes": True, "small": -3, "f": "nan", "price": "1234567890123456.7891", "name": "ü\n\"", "raw": "AP8=",
        "day": "2026-01-31", "at": "2026-01-31T12:00:00.123456Z", "local": "2026-01-31T12:00:00", "tags": ["1.5", None],
        "counts": {"a": 1.5, "b": None}, "days": [["2026-01-31", 1]],
        "place": {"x": 0.5, "when": "2026-01-31T12:00:00Z", "inner": [{"b": "AA=="}, None]},
    }  # fmt: skip
    nulls = {"id": 2}
    deleted = {"id": 1, "_op": "delete"}
    lines = "\n".join(json.dumps(r) for r in (row, nulls, deleted))
    run("append", "a", "-", "--format", "json", stdin=lines)
    printed = run("tail", "a", "--json").stdout
    run("append", "b", "-", "--format", "json", stdin=printed)
    again = run("tail", "b", "--json").stdout
    first, second = ([json.loads(line) for line in text.splitlines()] for text in (printed, again))
    for one, other in zip(first, second, strict=True):
        assert {**one, "_appended_at": None} == {**other, "_appended_at": None}
    assert {k: first[0][k] for k in row} == row


@pytest.mark.usefixtures("clicks")
@pytest.mark.parametrize("kind", ["json", "csv", "tsv", "parquet", "arrow", "stream"])
@pytest.mark.parametrize("piped", [False, True])
def test_every_format_from_file_and_pipe(run: Run, tmp_path: Path, kind: str, piped: bool) -> None:
    table = pa.Table.from_pylist([{"user": n, "url": f"/{n}", "at": None} for n in range(25)])
    table = table.set_column(2, "at", table["at"].cast(pa.timestamp("us", "UTC")))
    file = tmp_path / f"clicks.{'arrow' if kind == 'stream' else kind}"
    if kind == "json":
        file.write_text(LINES)
    elif kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        lines = [mark.join(("user", "url", "at")), *(mark.join((str(n), f'"/{n}"', "")) for n in range(25))]
        file.write_text("\n".join(lines) + "\n")
    elif kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, file)
    else:
        new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
        with new(str(file), table.schema) as writer:
            writer.write_table(table)
    form = "arrow" if kind == "stream" else kind
    if piped:
        result = run("append", "clicks", "-", "--format", form, "--chunk-rows", "10", stdin=file.read_bytes())
    else:
        result = run("append", "clicks", str(file), "--chunk-rows", "10")
    assert result.stdout == "appended 25 rows to clicks\n"
    found = [json.loads(line) for line in run("tail", "clicks", "-n", "99", "--json").stdout.splitlines()]
    assert sorted((row["user"], row["url"]) for row in found) == [(n, f"/{n}") for n in range(25)]


@pytest.mark.usefixtures("clicks")
@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("json", '{"user": 1}\n\n{"user": "x"}\n', "column 'user' of line 3 "),
        (
            "json",
            '{"user": 1}\n{"at": "yesterday"}\n',
            "column 'at' of line 2 for topic 'clicks' is 'yesterday', expected TIMESTAMP",
        ),
        ("json", '{"user": 1}\n{"user":\n', "line 2 for topic 'clicks' is not JSON"),
        ("json", "[1]\n", "line 1 for topic 'clicks' is not a JSON object"),
        ("json", '{"user": 1}\n{"nope": 1}\n', "line 2 "),
        (
            "csv",
            "user,at\n1,\n2,soon\n",
            "column 'at' of line 3 for topic 'clicks' is 'soon', expected TIMESTAMP",
        ),
        ("csv", "user\n1\n1,2\n", "line 3 for topic 'clicks' has 2 fields"),
        ("csv", "nope\n1\n", "no column 'nope'"),
        ("csv", 'user,url\n1,"a', "is not CSV"),
    ],
)
def test_a_bad_line_is_named(run: Run, kind: str, text: str, message: str) -> None:
    for option in ((), ("--atomic",)):
        status = 2 if "nope" in message else 1
        result = run("append", "clicks", "-", "--format", kind, *option, stdin=text, status=status)
        assert message in result.stderr
    assert run("tail", "clicks").stdout == ""


@pytest.mark.usefixtures("clicks")
def test_a_commit_whose_outcome_is_not_known_is_not_called_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = File.sync

    def failing(self: File) -> None:
        if self.name.startswith("journal/"):
            raise DiskFullError(f"no space left while writing {self.name}")
        sync(self)

    monkeypatch.setattr(File, "sync", failing)
    run("sql", "ALTER TOPIC clicks SET (durability = 'fsync')", status=0)
    result = run("append", "clicks", "-", "--format", "json", stdin=LINES, status=1)
    assert "its rows may be in the topic" in result.stderr
    assert "not known" in result.stderr
    assert "nothing was appended" not in result.stderr


@pytest.mark.usefixtures("clicks")
def test_what_was_before_a_bad_line_stays_unless_atomic(run: Run) -> None:
    text = LINES + '{"user": "x"}\n'
    result = run(
        "append", "clicks", "-", "--format", "json", "--chunk-rows", "10", "--atomic", stdin=text, status=1
    )
    assert "line 26 " in result.stderr
    assert "nothing was appended" in result.stderr
    assert run("tail", "clicks").stdout == ""
    result = run("append", "clicks", "-", "--format", "json", "--chunk-rows", "10", stdin=text, status=1)
    assert "20 rows before" in result.stderr
    assert len(run("tail", "clicks", "-n", "99").stdout.splitlines()) == 20


@pytest.mark.usefixtures("clicks")
def test_loading_under_a_name_can_be_run_again(run: Run) -> None:
    load = (
        "append",
        "clicks",
        "-",
        "--format",
        "json",
        "--chunk-rows",
        "10",
        "--producer",
        "loader",
        "--json",
    )
    assert listed(run(*load, stdin=LINES))["rows"] == 25
    again = listed(run(*load, stdin=LINES))
    assert (again["rows"], again["skipped"]) == (0, 25)
    other = run(*load, stdin=LINES + LINES, status=1)
    assert (code_of(other), "chunk 3" in other.stderr) == ("conflict", True)


@pytest.mark.usefixtures("clicks")
def test_a_load_that_was_cut_short_goes_on_where_it_stopped(run: Run) -> None:
    load = (
        "append",
        "clicks",
        "-",
        "--format",
        "json",
        "--chunk-rows",
        "5",
        "--producer",
        "loader",
        "--json",
    )
    cut = "".join(LINES.splitlines(keepends=True)[:15])
    run(*load, stdin=cut)
    whole = listed(run(*load, stdin=LINES))
    assert (whole["rows"], whole["skipped"], whole["appends"]) == (10, 15, 2)
    assert len(run("tail", "clicks", "-n", "99").stdout.splitlines()) == 25


@pytest.mark.usefixtures("clicks")
def test_null_in_csv_can_be_spelled(run: Run) -> None:
    run("append", "clicks", "-", "--format", "csv", "--null", "NULL", stdin='user,url\n1,""\n2,NULL\n')
    found = [json.loads(line) for line in run("tail", "clicks", "--json").stdout.splitlines()]
    assert sorted((row["user"], row["url"]) for row in found) == [(1, ""), (2, None)]


def test_a_format_must_be_clear(run: Run, tmp_path: Path) -> None:
    run("sql", "CREATE TOPIC t (a INT)")
    (tmp_path / "x.xls").write_text("")
    assert "--format" in run("append", "t", str(tmp_path / "x.xls"), status=2).stderr
    assert "Parquet" in run("append", "t", "-", "--format", "parquet", stdin="PAR0", status=2).stderr


def test_a_pipe_is_json_lines_unless_a_format_is_given(run: Run) -> None:
    run("sql", "CREATE TOPIC t (a INT)")
    assert "appended 2 rows" in run("append", "t", "-", stdin='{"a": 1}\n{"a": 2}\n').stdout


def test_doctor(run: Run) -> None:
    checks = {check["name"]: check for check in listed(run("doctor", "--json"))}
    assert {
        "python",
        "platform",
        "packages",
        "extras",
        "open files",
        "notification",
        "java",
        "workspace",
        "disk",
        "durability",
    } <= set(checks)
    assert {check["status"] for check in checks.values()} <= {"ok", "warn"}
    assert "ok    python" in run("doctor").stdout


def test_doctor_finds_a_workspace_of_a_newer_version(run: Run, tmp_path: Path) -> None:
    about = tmp_path / "w" / "headwater.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "format": 99}))
    result = run("doctor", status=1)
    assert "newer version" in result.stdout
    assert "hint: " in result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(run: Run, shell: str) -> None:
    assert "_HEADWATER_COMPLETE" in run("completion", shell).stdout


@pytest.mark.usefixtures("clicks")
def test_topics_complete(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    monkeypatch.setenv("HEADWATER_WORKSPACE", str(tmp_path / "w"))
    complete = ShellComplete(cli, {}, "headwater", "_HEADWATER_COMPLETE")
    assert [item.value for item in complete.get_completions(["tail"], "cl")] == ["clicks"]
    assert complete.get_completions(["-w", str(tmp_path / "nothing"), "tail"], "") == []


def test_debug_shows_the_traceback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_DEBUG", "1")
    with pytest.raises(hw.TopicNotFoundError):
        run("tail", "nothing")


@pytest.mark.usefixtures("clicks")
@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("json", '{"at": "yesterday"}\n'),
        ("json", "{\n"),
        ("json", "[1]\n"),
        ("csv", "1,2,3\n"),
        ("csv", "x,/a\n"),
        ("csv", '1,"a'),
        ("csv", "1_000,/a\n"),
    ],
)
def test_an_error_of_reading_says_what_is_in_the_topic(run: Run, kind: str, bad: str) -> None:
    good = LINES if kind == "json" else "user,url\n" + "".join(f"{n},/{n}\n" for n in range(25))
    load = ("append", "clicks", "-", "--format", kind, "--chunk-rows", "10")
    result = run(*load, stdin=good + bad, status=1)
    assert "topic 'clicks'" in result.stderr
    assert "detail: the 20 rows before the failed chunk are in the topic" in result.stderr
    assert len(run("tail", "clicks", "-n", "99").stdout.splitlines()) == 20
    assert "detail: nothing was appended" in run(*load, "--atomic", stdin=good + bad, status=1).stderr
    assert len(run("tail", "clicks", "-n", "99").stdout.splitlines()) == 20


@pytest.mark.usefixtures("clicks")
def test_a_file_cut_short_says_what_is_in_the_topic(run: Run) -> None:
    table = pa.table({"user": list(range(1_000))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    cut = sink.getvalue().to_pybytes()[:-900]
    result = run("append", "clicks", "-", "--format", "arrow", "--chunk-rows", "100", stdin=cut, status=2)
    assert "the input is not Arrow IPC (appending to topic 'clicks')" in result.stderr
    assert "the 900 rows before the failed chunk are in the topic" in result.stderr


@pytest.mark.usefixtures("clicks")
def test_an_atomic_load_under_a_name_says_what_was_there(run: Run) -> None:
    load = ("append", "clicks", "-", "--format", "json", "--chunk-rows", "10", "--atomic", "--producer", "q")
    assert run(*load, stdin=LINES).stdout == "appended 25 rows to clicks\n"
    assert run(*load, stdin=LINES).stdout == "appended 0 rows to clicks; skipped 25 that were in it already\n"
    assert code_of(run(*load, stdin=LINES + LINES, status=1)) == "conflict"


@pytest.mark.usefixtures("clicks")
@pytest.mark.parametrize("option", [(), ("--atomic",)])
def test_ctrl_c_waits_for_the_append_at_hand_and_says_what_is_in(
    run: Run, option: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Topic.append

    def interrupted(topic: Topic, rows: Any, **options: Any) -> Any:
        receipt = append(topic, rows, **options)
        signal.raise_signal(signal.SIGINT)
        return receipt

    monkeypatch.setattr(Topic, "append", interrupted)
    load = ("append", "clicks", "-", "--format", "json", "--chunk-rows", "10", *option)
    result = run(*load, stdin=LINES, status=130)
    rows = 25 if option else 10
    assert result.stderr == f"interrupted: {rows} rows of the file are in topic clicks\n"
    assert len(run("tail", "clicks", "-n", "99").stdout.splitlines()) == rows


@pytest.mark.usefixtures("clicks")
def test_bytes_that_are_not_utf_8_are_found_in_their_line(run: Run) -> None:
    text = b"user,url\n1,/a\n2,/\xff\n3,/c\n"
    result = run("append", "clicks", "-", "--format", "csv", stdin=text, status=1)
    assert "line 3 for topic 'clicks' is not UTF-8" in result.stderr


@pytest.mark.usefixtures("clicks")
def test_lines_may_end_in_a_carriage_return(run: Run) -> None:
    text = 'user,url\r1,/a\r2,"b\rc"\r'
    assert "appended 2 rows" in run("append", "clicks", "-", "--format", "csv", stdin=text).stdout


@pytest.mark.usefixtures("clicks")
def test_a_topic_that_is_nearly_there_is_suggested(run: Run) -> None:
    assert "hint: did you mean clicks?" in run("tail", "cliks", status=1).stderr
