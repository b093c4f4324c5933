"""Parsers of the statements about alerts, and the built-in alerts."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.catalog.connectors import ALERT_OPTIONS, AlertDefinition, Options, check_alert
from headwater.core.clock import Microseconds, parse_span_us
from headwater.core.types import quote
from headwater.sql.clauses import checked, read_kind, read_new_name, read_options, read_set, read_string
from headwater.sql.lexer import Word, Words, shown
from headwater.sql.statements import CreateAlert, CreateDefaultAlerts, DropAlert, SetAlert

_MINUTE: Microseconds = 60_000_000
DEFAULTS: tuple[tuple[str, str, Mapping[str, str], str, Microseconds], ...] = (
    *(
        (name, "headwater_component_status", labels, "value > 0", held_us)
        for name, labels, held_us in (
            ("engine_not_running", {"kind": "engine", "status": "not running"}, 5 * _MINUTE),
            ("engine_frozen", {"kind": "engine", "status": "frozen"}, 0),
            ("engine_failed", {"kind": "engine", "status": "failed"}, 0),
            ("view_stopped", {"kind": "view", "status": "stopped"}, 0),
            ("source_waiting", {"kind": "source", "status": "waiting"}, 5 * _MINUTE),
            ("source_stopped", {"kind": "source", "status": "stopped"}, 0),
            ("sink_retrying", {"kind": "sink", "status": "retrying"}, 5 * _MINUTE),
            ("follower_behind", {"kind": "sink", "status": "behind"}, 5 * _MINUTE),
            ("sink_stopped", {"kind": "sink", "status": "stopped"}, 0),
            ("upstream_stopped", {"status": "upstream stopped"}, 0),
            ("queue_behind", {"kind": "queue", "status": "behind"}, 5 * _MINUTE),
            ("reader_lagging", {"status": "lagging"}, 5 * _MINUTE),
            ("reader_falling_off", {"status": "falling off"}, 0),
            ("reader_lost_rows", {"status": "rows lost"}, 0),
            ("background_failing", {"kind": "background", "status": "failing"}, 0),
            ("clock_in_doubt", {"kind": "clock", "status": "in doubt"}, 0),
        )
    ),
    ("late_rows_dropped", "headwater_view_recent_dropped_share", {}, "value > 0.01", 0),
    ("late_rows_diverted", "headwater_view_recent_late_share", {}, "value > 0.01", 0),
    ("source_rows_rejected", "headwater_source_recent_rejected", {}, "value > 0", 0),
    ("source_dead_letters", "headwater_dead_letters", {"kind": "source"}, "value > 0", 0),
    ("view_dead_letters", "headwater_dead_letters", {"kind": "view"}, "value > 0", 0),
    ("sink_dead_letters", "headwater_dead_letters", {"kind": "sink"}, "value > 0", 0),
    ("queue_dead_letters", "headwater_dead_letters", {"kind": "queue"}, "value > 0", 0),
    ("wal_retained", "headwater_source_retained_wal_bytes", {}, "value > 10e9", 5 * _MINUTE),
    ("disk_nearly_full", "headwater_disk_free_bytes", {}, "value < 5e9", _MINUTE),
)
"""The built-in alerts: name, metric, labels, condition, and how long the condition must hold."""


def create_alert(words: Words, replace: bool) -> CreateAlert | CreateDefaultAlerts:
    """Parse the rest of CREATE [OR REPLACE]: ALERT ..., or DEFAULT ALERTS NOTIFY kind WITH (...)."""
    if words.next.is_("DEFAULT"):
        if replace:
            words.fail(
                "CREATE DEFAULT ALERTS takes no OR REPLACE",
                hint="leave OR REPLACE out: existing alerts stay",
                reason="or-replace",
            )
        words.expect("DEFAULT", "ALERTS")
        first = words.next
        kind, options = _notify(words)
        made = tuple(
            AlertDefinition(name, kind, options, metric, True, labels, condition, held_us)
            for name, metric, labels, condition, held_us in DEFAULTS
        )
        checked(words, first, words.before(1), lambda: check_alert(made[0]))
        return CreateDefaultAlerts(made)
    words.expect("ALERT")
    lenient, name = read_new_name(words, replace, "alert")
    hint = f"write CREATE ALERT {quote(name.text)} ON view WHEN condition NOTIFY WEBHOOK WITH (url = '...')"
    words.expect("ON", hint=hint)
    metric = words.next.is_("METRIC") and words.ahead(1).is_name and not words.ahead(1).is_("WHEN")
    if metric:
        words.take()
    on = words.name("the name of a metric" if metric else "the name of a view").text
    labels = _labels(words) if metric and words.accept("{") else {}
    words.expect("WHEN", hint=hint)
    condition = _condition(words, hint)
    held_us = _read_duration(words) if words.accept("FOR") else 0
    kind, options = _notify(words)
    definition = AlertDefinition(name.text, kind, options, on, metric, labels, condition, held_us)
    checked(words, name, words.before(1), lambda: check_alert(definition))
    return CreateAlert(definition, lenient, replace)


def alter_alert(words: Words) -> SetAlert:
    """Parse the rest of ALTER ALERT: name SET (...)."""
    name = words.name("the name of an alert").text
    words.expect(
        "SET",
        hint=f"write ALTER ALERT {quote(name)} SET (url = '...'); CREATE OR REPLACE ALERT changes the rest",
    )
    known = list(dict.fromkeys(option for options in ALERT_OPTIONS.values() for option in options))
    return SetAlert(name, read_set(words, known, "alert", "url = '...'"))


def drop_alert(words: Words) -> DropAlert:
    """Parse the rest of DROP ALERT: [IF EXISTS] name."""
    lenient = words.accept("IF", "EXISTS")
    return DropAlert(words.name("the name of an alert").text, lenient)


def _notify(words: Words) -> tuple[str, Options]:
    words.expect("NOTIFY", hint="write NOTIFY WEBHOOK WITH (url = '...')")
    kind = read_kind(words, ALERT_OPTIONS, "notice")
    what = f"notice by {kind}"
    return kind, read_options(words, ALERT_OPTIONS[kind], what) if words.accept("WITH") else {}


def _labels(words: Words) -> dict[str, str]:
    found: dict[str, str] = {}
    while not words.accept("}"):
        if found:
            words.expect(",")
        name = words.name("a label").text
        words.expect("=", hint=f"write {name} = 'value'")
        if words.next.kind != "string":
            words.fail(
                f"expected the text of a label, found {shown(words.next)}",
                hint=f"write {name} = 'value'",
                expected="a string",
                found=words.next.text,
            )
        found[name] = read_string(words, words.take())
    return found


def _condition(words: Words, hint: str) -> str:
    """Return the text up to FOR or NOTIFY outside of parentheses, unchanged."""
    taken: list[Word] = []
    depth = 0
    while not (words.at_end() or words.next.is_(";")):
        if not depth and (
            words.next.is_("NOTIFY") or (words.next.is_("FOR") and words.ahead(1).kind == "string")
        ):
            break
        word = words.take()
        depth += word.is_("(") - word.is_(")")
        taken.append(word)
    if not taken or depth:
        words.fail(
            "expected a condition with balanced parentheses before NOTIFY", hint=hint, reason="no-condition"
        )
    return words.text[taken[0].start : taken[-1].end]


def _read_duration(words: Words) -> Microseconds:
    first = words.next
    text = read_string(words, words.take())
    return checked(words, first, words.before(1), lambda: parse_span_us(text), "FOR '5 minutes'")
