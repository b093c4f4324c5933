"""The extras of the package: what each is for, the libraries it brings, and the error where one is missing.

It tries to import what a feature needs; the module that uses a library imports it itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from headwater.core.errors import ExtraMissingError


@dataclass(frozen=True)
class Extra:
    """An optional part of the package: what it is for, and the modules that it brings."""

    use: str
    modules: tuple[str, ...]


EXTRAS: Mapping[str, Extra] = {
    "postgres": Extra("sources and sinks of Postgres", ("psycopg",)),
    "redis": Extra("sinks into Redis", ("redis",)),
    "lake": Extra("sinks into Iceberg tables", ("pyiceberg", "sqlalchemy")),
    "search": Extra("search indexes and standing queries", ("tantivy",)),
    "otel": Extra(
        "ticks as OpenTelemetry spans",
        ("opentelemetry", "opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"),
    ),
}
"""By name, as in the brackets of the command that installs them. The kinds of sinks that need one are named like it."""


def install_command(*names: str) -> str:
    """The command that installs extras."""
    return f'pip install "headwater[{",".join(names)}]"'


def why_missing(name: str) -> ImportError | None:
    """The reason why an extra cannot be used; None where it can."""
    for module in EXTRAS[name].modules:
        try:
            import_module(module)
        except ImportError as error:
            return error
    return None


def require(name: str, feature: str) -> None:
    """The check that an extra is installed, before a feature of it is used; `ExtraMissingError` with the install command if not."""
    error = why_missing(name)
    if error is not None:
        raise ExtraMissingError(
            f"{feature} needs the extra {name!r}, which is not installed",
            detail=str(error),
            hint=install_command(name),
            extra=name,
        ) from error
