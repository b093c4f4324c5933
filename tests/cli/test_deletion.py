"""`headwater forget`, `excise`, `deletions` and `rotate-keys`, on workspaces without views: no JVM is needed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.program import cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.sql("CREATE TOPIC people (user BIGINT NOT NULL, email STRING PRIVATE BY (user), city STRING)")
        ws.topic("people").append([{"user": u, "email": f"{u}@x", "city": "Bern"} for u in range(4)])
    return tmp_path / "w"


def run(folder: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, ["-w", str(folder), *words])


def test_forget_tells_every_place(folder: Path) -> None:
    done = run(folder, "forget", "1", "--reason", "asked", "--by", "anna")
    assert done.exit_code == 0, done.output
    assert "forget-1: forgot '1', 1 record" in done.output
    assert "the key was destroyed" in done.output
    assert "out of reach" in done.output
    told = json.loads(run(folder, "deletions", "--json").output)
    assert [(t["name"], t["of"], t["who"], t["reason"], t["done"]) for t in told] == [
        ("forget-1", "1", "anna", "asked", True)
    ]
    assert run(folder, "deletions", "forget-1").output == done.output
    assert run(folder, "tail", "people").output.count("@x") == 3


def test_excise_removes_what_it_finds(folder: Path) -> None:
    done = run(folder, "excise", "people", "--where", "user IN (1, 2)", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.output)
    assert (told["what"], told["of"], told["where"], told["records"]) == (
        "excise",
        "people",
        "user IN (?, ?)",
        2,
    )
    assert {p["kind"]: p["status"] for p in told["places"]} == {"log": "done", "copies": "out of reach"}
    with hw.open(folder) as ws:
        rows = [r for b in ws.topic("people").read(columns=["user", "_offset"]) for r in b.to_pylist()]
        assert rows == [{"user": 0, "_offset": 0}, {"user": 3, "_offset": 3}]


def test_another_master_key(folder: Path) -> None:
    assert run(folder, "rotate-keys").output == "4 keys wrapped with a new master key\n"
    assert json.loads(run(folder, "rotate-keys", "--json").output) == {"keys": 4}
    assert run(folder, "tail", "people").output.count("@x") == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("forget", "9"), "'9'"),
        (("excise", "people", "--where", "user = 9"), "code: bad-request"),
        (("excise", "people", "--where", ""), "code: "),
        (("excise", "people"), "--where"),
        (("deletions", "forget-3"), "there is no deletion 'forget-3'"),
    ],
)
def test_wrong_input_is_refused(folder: Path, words: tuple[str, ...], says: str) -> None:
    done = run(folder, *words)
    assert done.exit_code == 2
    assert says in done.output
    assert run(folder, "deletions").output == "no deletions\n"


def test_doctor_looks_at_the_keys(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> tuple[str, str]:
        checks = {check["name"]: check for check in json.loads(run(folder, "doctor", "--json").output)}
        return checks["keys"]["status"], checks["keys"]["message"]

    (keys,) = Path(f"{folder}.keys").iterdir()
    assert told() == ("ok", f"4 subjects, in {keys}, readable by its owner only")
    for path, mode in ((keys / "keys", 0o644), (keys, 0o750)):
        before = path.stat().st_mode
        path.chmod(mode)
        assert told() == ("warn", f"other users can read {path}")
        path.chmod(before)
    keys.joinpath("master").rename(keys / "elsewhere")
    assert told()[0] == "fail"
    keys.joinpath("elsewhere").rename(keys / "master")

    within = folder / "keys"
    Path(f"{folder}.keys").rename(within)
    status, message = told()
    assert status == "fail"
    assert "is missing, and topic people has private columns" in message
    monkeypatch.setenv("HEADWATER_KEYS", str(within))
    assert told() == (
        "warn",
        f"{within / keys.name} is in the workspace: backups of the workspace contain the keys",
    )
