"""CREATE ALERT and what goes with it, as text: read, shown without secrets, and refused where a statement is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.catalog.connectors import (
    ALERT_OPTIONS,
    AlertDefinition,
    EnvValue,
    altered_alert,
    check_alert,
    difference,
    refuse_written_secrets,
)
from headwater.core.errors import NewerVersionError, SchemaError, StatementError, UsageError
from headwater.sql.alert_statements import DEFAULTS
from headwater.sql.parser import parse
from headwater.sql.statements import CreateAlert, CreateDefaultAlerts, DropAlert, SetAlert
from tests.raising import raises

URL = {"url": "http://localhost/alarm"}
NOTIFY = "NOTIFY WEBHOOK WITH (url = 'http://localhost/alarm')"


def definition(**changed: Any) -> AlertDefinition:
    """An alert of a view."""
    made: dict[str, Any] = {
        "name": "low",
        "kind": "webhook",
        "options": URL,
        "on": "stock",
        "metric": False,
        "labels": {},
        "condition": "n < 5",
    }
    return AlertDefinition(**{**made, **changed})


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("low ON stock WHEN n < 5", definition()),
        ("low ON stock WHEN n < 5 FOR '90 seconds'", definition(held_us=90_000_000)),
        ("`a b` ON `order` WHEN (x FOR '1') > 2", None),
        ("low ON metric WHEN n < 5", definition(on="metric")),
        (
            "low ON METRIC headwater_disk_free_bytes WHEN value < 5e9",
            definition(on="headwater_disk_free_bytes", metric=True, condition="value < 5e9"),
        ),
        (
            "low ON METRIC m {kind = 'sink', status = 'it''s'} WHEN value > 0 AND (value < 9 OR value > 99)",
            definition(
                on="m",
                metric=True,
                labels={"kind": "sink", "status": "it's"},
                condition="value > 0 AND (value < 9 OR value > 99)",
            ),
        ),
    ],
)
def test_an_alert_is_read(text: str, made: AlertDefinition | None) -> None:
    if made is None:  # a name that SQL quotes is no name of an alert
        with raises(StatementError):
            parse(f"CREATE ALERT {text} {NOTIFY}")
        return
    assert parse(f"CREATE ALERT {text} {NOTIFY}") == [CreateAlert(made)]
    assert parse(made.to_sql()) == [CreateAlert(made)], "as it is shown, it is the same alert"
    assert AlertDefinition.from_document(made.to_document()) == made


def test_an_alert_is_created_if_it_is_missing_or_replaced() -> None:
    rest = f"low ON stock WHEN n < 5 {NOTIFY}"
    assert parse(f"CREATE ALERT IF NOT EXISTS {rest}") == [CreateAlert(definition(), if_not_exists=True)]
    assert parse(f"CREATE OR REPLACE ALERT {rest}") == [CreateAlert(definition(), or_replace=True)]


@pytest.mark.parametrize(
    ("notify", "kind", "options"),
    [
        (
            "EMAIL WITH (to = 'a@localhost', host = 'mail', port = 25, starttls = false, password = env('P'))",
            "email",
            {"to": "a@localhost", "host": "mail", "port": 25, "starttls": False, "password": EnvValue("P")},
        ),
        ("TOPIC WITH (topic = 'alarms')", "topic", {"topic": "alarms"}),
    ],
)
def test_it_can_notify_by_mail_and_by_topic(notify: str, kind: str, options: dict[str, Any]) -> None:
    made = definition(kind=kind, options=options)
    assert parse(f"CREATE ALERT low ON stock WHEN n < 5 NOTIFY {notify}") == [CreateAlert(made)]
    assert AlertDefinition.from_document(made.to_document()) == made


def test_the_default_alerts_are_made_at_once() -> None:
    (statement,) = parse(f"CREATE DEFAULT ALERTS {NOTIFY}")
    assert isinstance(statement, CreateDefaultAlerts)
    assert [made.name for made in statement.alerts] == [name for name, *_ in DEFAULTS]
    for made in statement.alerts:
        assert made.metric
        assert made.options == URL
        assert parse(made.to_sql()) == [CreateAlert(made)]


def test_the_others_are_read() -> None:
    assert parse(
        "ALTER ALERT low SET (url = NULL, timeout = '5 s'); DROP ALERT IF EXISTS low; DROP ALERT low"
    ) == [
        SetAlert("low", {"url": None, "timeout": "5 s"}),
        DropAlert("low", if_exists=True),
        DropAlert("low"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        f"CREATE ALERT low ¦WHEN n < 5 {NOTIFY}",
        f"CREATE ALERT low ON stock ¦FOR '1 s' {NOTIFY}",
        f"CREATE ALERT low ON stock WHEN ¦{NOTIFY}",
        f"CREATE ALERT low ON stock WHEN n < 5 FOR ¦'soon' {NOTIFY}",
        "CREATE ALERT low ON stock WHEN n < 5¦",
        f"CREATE ALERT low ON stock WHEN (n < 5 {NOTIFY}¦",
        "CREATE ALERT low ON stock WHEN n < 5 NOTIFY ¦PIGEON",
        "CREATE ALERT low ON stock WHEN n < 5 NOTIFY TOPIC WITH (¦url = 'x')",
        f"CREATE ALERT low ON METRIC m {{¦= 'x'}} WHEN value > 0 {NOTIFY}",
        f"CREATE ALERT low ON METRIC m {{kind ¦'x'}} WHEN value > 0 {NOTIFY}",
        f"CREATE ALERT low ON METRIC m {{kind = ¦7}} WHEN value > 0 {NOTIFY}",
        f"CREATE ALERT low ON METRIC m {{kind = 'x' ¦status = 'y'}} WHEN value > 0 {NOTIFY}",
        f"CREATE OR REPLACE ¦DEFAULT ALERTS {NOTIFY}",
        "CREATE DEFAULT ALERTS ¦WITH (url = 'x')",
        "ALTER ALERT low ¦ON stock",
        "ALTER ALERT low SET (¦uri = 'x')",
    ],
)
def test_a_mistake_is_pointed_at(text: str) -> None:
    with raises(StatementError, line=1, column=text.index("¦") + 1):
        parse(text.replace("¦", ""))


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "a b"},
        {"options": {}},
        {"kind": "email", "options": {"to": "a@localhost"}},
        {"kind": "topic", "options": {"topic": 7}},
        {"options": {**URL, "secret": "geheim"}},
        {"options": {**URL, "token": "geheim"}},
    ],
)
def test_a_definition_that_cannot_work_is_refused(changed: dict[str, Any]) -> None:
    with raises(SchemaError) as caught:
        check_alert(definition(**changed))
    assert "geheim" not in str(caught.value)


def test_secrets_are_looked_up_in_the_environment_and_never_shown() -> None:
    made = definition(options={"url": "http://user:geheim@localhost/x?token=geheim", "secret": EnvValue("S")})
    check_alert(made)
    refuse_written_secrets(made, ("secret",))
    assert made.resolved({"S": "whsec"})["secret"] == "whsec"
    assert "geheim" not in made.to_sql()
    assert "secret = env('S')" in made.to_sql()
    with raises(UsageError):
        made.resolved({})


def test_an_altered_alert_has_other_options_of_its_kind() -> None:
    made = altered_alert(definition(options={**URL, "timeout": "1 s"}), {"timeout": None, "url": "http://x"})
    assert made.options == {"url": "http://x"}
    with raises(UsageError):
        altered_alert(definition(), {"topic": "alarms"})
    with raises(SchemaError):
        altered_alert(definition(), {"url": None})
    assert set(ALERT_OPTIONS["webhook"]) >= {"url", "timeout"}


def test_the_difference_of_alerts_names_what_changed() -> None:
    other = definition(on="m", metric=True, labels={"kind": "sink"}, condition="value > 0", held_us=1_000_000)
    assert difference(definition(), other) == [
        "- on = stock",
        "+ on = METRIC m{kind = 'sink'}",
        "- when = n < 5",
        "+ when = value > 0",
        "- for = 0 microseconds",
        "+ for = 1 second",
    ]
    assert difference(definition(), definition()) == []


def test_a_definition_of_a_newer_version_is_refused() -> None:
    with raises(NewerVersionError):
        AlertDefinition.from_document({**definition().to_document(), "format": 99})
