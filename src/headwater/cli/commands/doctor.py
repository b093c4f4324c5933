"""`headwater doctor`: checks the installation, the machine and the workspace."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import click

import headwater as hw
from headwater.cli.output import print_json, shown_bytes
from headwater.cli.session import CommandSession, json_option, pass_session
from headwater.cli.tables import width, wrapped
from headwater.core.clock import SystemClock
from headwater.core.errors import HeadwaterError
from headwater.core.extras import EXTRAS, install_command, require, why_missing

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)[^;]*(?:;(.*))?$")
FILES_MIN = 1_024
FREE_BYTES_WARN = 1 << 30
FREE_BYTES_MIN = 64 << 20
SYNC_ROUNDS = 5


@dataclass(frozen=True)
class Check:
    """The result of one check; a hint is a remedy."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    hint: str | None = None


@click.command()
@click.argument("url", required=False)
@click.option(
    "--tables",
    default="",
    metavar="NAMES",
    help="Check only these tables: 'public.orders, public.customers'.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Check the executors of the Spark master that HEADWATER_SPARK_MASTER names.",
)
@json_option
@pass_session
def doctor(session: CommandSession, url: str | None, tables: str, cluster: bool, as_json: bool) -> None:
    """Check the installation, the machine and the workspace.

    With the URL of a Postgres database: check instead what is missing there to capture its tables, and print the
    statements that add it. With --cluster: run a Spark job that checks what executors need. Exit status 1 if a check
    fails.
    """
    if url is not None:
        checks = _database(url, tables)
    elif cluster:
        checks = _executors(session)
    else:
        checks = [
            _python(),
            _platform(),
            _packages(),
            _extras(),
            _open_files(),
            _notification(),
            _java(),
            *_workspace(session),
        ]
    if as_json:
        print_json(checks)
    else:
        marks = {
            "ok": click.style("ok  ", fg="green"),
            "warn": click.style("warn", fg="yellow"),
            "fail": click.style("fail", fg="red"),
        }
        names = max(len(check.name) for check in checks)
        for check in checks:
            first, *more = wrapped(check.message, width() - names - 8)
            click.echo(f"{marks[check.status]}  {check.name:<{names}}  {first}".rstrip())
            more += wrapped(f"hint: {check.hint}", width() - names - 8) if check.hint else []
            for line in more:
                click.echo(f"{'':{names + 8}}{line}")
    if any(check.status == "fail" for check in checks):
        click.get_current_context().exit(1)


def _database(url: str, tables: str) -> list[Check]:
    require("postgres", "checking a Postgres database")
    from headwater.sources.postgres.server.postgres_doctor import doctor

    return [
        Check("postgres", "ok" if found.status == "ok" else "fail", found.sentence, found.statement)
        for found in doctor(url, tables)
    ]


def _executors(session: CommandSession) -> list[Check]:
    """Check the executors of the cluster: versions, the workspace's folder, clock and memory."""
    from headwater.engine.dataflow.cluster_check import check_cluster
    from headwater.spark.spark_session import session as spark_session

    with session.open():
        root = str(Path(session.path).resolve())
    try:
        report = check_cluster(spark_session(None), root)
    except HeadwaterError as error:
        return [Check("executors", "fail", f"{error.message}: {error.detail}", error.hint)]
    wrong = {difference.executor for difference in report.differences}
    reached = len(report.executors)
    about = f"{reached} reached through {report.master}, {reached - len(wrong)} of them ready"
    checks = [Check("executors", "fail" if wrong else "ok", about)]
    if report.master.startswith("local"):
        hint = "HEADWATER_SPARK_MASTER=spark://host:7077 names a cluster"
        checks.append(
            Check("master", "warn", "Spark runs in local mode: these are threads of this machine", hint)
        )
    for difference in report.differences:
        checks.append(
            Check("executor", "fail", f"{difference.executor} {difference.sentence}", difference.hint)
        )
    if not wrong:
        first = report.executors[0]
        same = (
            f"Python {first.python}, headwater {first.packages['headwater']}, the workspace's folder, clocks"
        )
        checks.append(Check("the same", "ok", same))
    checks.append(Check("keys", "ok", "not needed there: the engine's process reads private columns"))
    return checks


def _python() -> Check:
    fit = sys.version_info >= (3, 11)
    return Check(
        "python",
        "ok" if fit else "fail",
        f"{platform.python_version()} at {sys.executable}",
        None if fit else "use Python 3.11 or newer",
    )


def _platform() -> Check:
    known = sys.platform in ("linux", "darwin")
    hint = None if known else "Headwater is tested on Linux and macOS"
    return Check(
        "platform",
        "ok" if known else "warn",
        f"{platform.system()} {platform.release()} {platform.machine()}",
        hint,
    )


def _packages() -> Check:
    found, missing = [], []
    for name in _needed():
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", "fail", f"missing: {', '.join(missing)}", "pip install headwater")
    return Check("packages", "ok", ", ".join(found))


def _needed() -> list[str]:
    """Return the packages that the installed Headwater requires on this platform."""
    try:
        asked = [_REQUIREMENT.match(line) for line in metadata.requires("headwater") or []]
    except metadata.PackageNotFoundError:
        return ["pyarrow", "numpy", "orjson", "click", "rich", "sqlglot"]
    needed = [(m[1], m[2] or "") for m in asked if m]
    return [
        name
        for name, marker in needed
        if "extra ==" not in marker and ("sys_platform" not in marker or sys.platform in marker)
    ]


def _extras() -> Check:
    """Check which extras are installed. A missing extra is no failure: a command that needs it raises an error."""
    missing = [name for name in EXTRAS if why_missing(name) is not None]
    found = [name for name in EXTRAS if name not in missing]
    if not missing:
        return Check("extras", "ok", ", ".join(found))
    absent = "; ".join(f"{name} ({EXTRAS[name].use})" for name in missing)
    return Check(
        "extras",
        "ok",
        f"{', '.join(found) or 'none'}; not installed: {absent}",
        f"to install them: {install_command(*missing)}",
    )


def _open_files() -> Check:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILES_MIN:
        return Check("open files", "warn", f"at most {soft}", f"ulimit -n {FILES_MIN}")
    return Check("open files", "ok", f"at most {soft}" if soft != resource.RLIM_INFINITY else "no limit")


def _notification() -> Check:
    from headwater.log.embedded.journal.notify import mechanism

    return Check("notification", "ok", f"readers are notified by {mechanism()}")


def _java() -> Check:
    from headwater.spark.java import find_java

    try:
        java = find_java()
    except hw.JavaMissingError as error:
        return Check("java", "warn", f"{error.message}; views need it, the log does not", error.hint)
    return Check("java", "ok", f"Java {java.version} at {java.home}")


def _workspace(session: CommandSession) -> list[Check]:
    try:
        with session.open() as ws:
            log = ws.log
            topics = ws.topics()
            findings = list(getattr(log, "findings", ()))
            keys = _keys(log, Path(session.path))
    except (hw.NotAWorkspaceError, hw.WorkspaceMissingError) as error:
        if session.chosen:
            return [Check("workspace", "fail", error.message, error.hint)]
        return [
            Check("workspace", "ok", "this folder is not a workspace", "-w PATH names the workspace to check")
        ]
    except HeadwaterError as error:
        return [Check("workspace", "fail", error.message, error.hint)]
    about = f"{Path(session.path).resolve()}: {len(topics)} topics, format {_format(session.path)}"
    checks = [Check("workspace", "ok", about)]
    for finding in findings:
        checks.append(Check("recovery", "warn", finding, "headwater verify checks the whole log"))
    return [*checks, *keys, _disk(session.path), _sync(session.path)]


def _keys(log: Any, workspace: Path) -> list[Check]:
    """Check that the keys to private columns exist, can be opened, and are readable by their owner alone; empty without
    keys."""
    folder: Path = log.keys.folder
    if not folder.exists():
        private = [t.name for t in log.topics().values() if t.private and _has_records(log, t.name)]
        if not private:
            return []
        hint = "restore the folder, or set HEADWATER_KEYS to it; without it private values cannot be read"
        return [
            Check(
                "keys",
                "fail",
                f"the folder {folder} is missing, and topic {private[0]} has private columns",
                hint,
            )
        ]
    try:
        subjects = log.keys.check()
    except HeadwaterError as error:
        return [Check("keys", "fail", error.message, error.hint)]
    open_to = [path for path in (folder, *folder.iterdir()) if path.stat().st_mode & 0o077]
    if open_to:
        return [Check("keys", "warn", f"other users can read {open_to[0]}", f"chmod -R go= {folder}")]
    if folder.resolve().is_relative_to(workspace.resolve()):
        hint = "move the folder out of the workspace, and set HEADWATER_KEYS to it"
        return [
            Check(
                "keys",
                "warn",
                f"{folder} is in the workspace: backups of the workspace contain the keys",
                hint,
            )
        ]
    return [Check("keys", "ok", f"{subjects:,} subjects, in {folder}, readable by its owner only")]


def _has_records(log: Any, topic: str) -> bool:
    return any(info.end > 0 for info in log.partitions(topic).values())


def _format(path: str) -> int:
    """Return the format version of a workspace."""
    from headwater.core.storage import Storage
    from headwater.log.embedded.creation import WORKSPACE_FILE

    return int(json.loads(Storage(path).read(WORKSPACE_FILE))["format"])


def _disk(path: str) -> Check:
    free = shutil.disk_usage(path).free
    said = f"{shown_bytes(free)} free"
    if free < FREE_BYTES_MIN:
        return Check("disk", "fail", said, "free some space; appends continue then")
    if free < FREE_BYTES_WARN:
        return Check(
            "disk",
            "warn",
            said,
            "`headwater lag` shows when the disk is full; a shorter retention frees space",
        )
    return Check("disk", "ok", said)


def _sync(path: str) -> Check:
    """Measure the median time, in milliseconds, of a sync to the workspace's disk."""
    from headwater.core.storage import Storage

    clock, took = SystemClock(), []
    try:
        with tempfile.TemporaryDirectory(prefix=".doctor-", dir=path) as folder:
            file = Storage(folder).open("probe", create=True)
            for i in range(SYNC_ROUNDS):
                began = clock.steady_ms()
                file.write_at(i * 4096, os.urandom(4096))
                file.sync()
                took.append(clock.steady_ms() - began)
            file.close()
    except (HeadwaterError, OSError) as error:
        return Check(
            "durability", "fail", f"cannot write to the workspace: {error}", "check the folder's permissions"
        )
    median = sorted(took)[len(took) // 2]
    if median > 50:
        return Check(
            "durability",
            "warn",
            f"a sync takes {median:.1f} ms",
            "with durability = 'group' concurrent appends share a sync",
        )
    return Check("durability", "ok", f"a sync takes {median:.1f} ms")
