"""`headwater init --project`: a project that runs as it is, and never over what is there."""

from pathlib import Path

from click.testing import CliRunner

from headwater.cli.program import cli
from headwater.sql.parser import parse


def test_a_project_has_a_pipeline_and_the_way_on(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    done = CliRunner().invoke(cli, ["init", "--project", str(folder)])
    assert done.exit_code == 0, done.output
    assert f"next: cd {folder}" in done.stdout
    assert "run pipeline.sql --console" in done.stdout
    assert {path.name for path in folder.iterdir()} == {
        "pipeline.sql",
        ".env.example",
        ".gitignore",
        "README.md",
        "workspace",
    }
    statements = list(parse((folder / "pipeline.sql").read_text()))
    assert [type(statement).__name__ for statement in statements] == ["CreateTopic", "CreateView"]
    assert "# mine" in (folder / "README.md").read_text()
    assert ".env\n" in (folder / ".gitignore").read_text()


def test_what_the_pipeline_leaves_to_uncomment_can_be_read(tmp_path: Path) -> None:
    CliRunner().invoke(cli, ["init", "--project", str(tmp_path)])
    lines = (tmp_path / "pipeline.sql").read_text().splitlines()
    code = [line.removeprefix("-- ") for line in lines if not line.startswith("-- ") or _is_sql(line)]
    kinds = [type(statement).__name__ for statement in parse("\n".join(code))]
    assert kinds == ["CreateTopic", "CreateSource", "CreateView", "CreateView", "CreateSink"]


def _is_sql(line: str) -> bool:
    return line.startswith(("-- CREATE", "--   "))


def test_files_that_are_there_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("dear reader")
    done = CliRunner().invoke(cli, ["init", "--project", str(tmp_path)])
    assert done.exit_code == 2
    assert "README.md" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "dear reader"
