"""The extras of the package: their purpose, the libraries that they bring, and the error if one is missing.

Only tries to import the libraries of a feature; the module that uses a library imports it itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from headwater.core.errors import ExtraMissingError


@dataclass(frozen=True)
class Extra:
    """An optional part of the package: its purpose, and the modules that it brings."""

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
"""Extras by name, as in the brackets of the install command. Kinds of sinks that need an extra have its name."""


def install_command(*names: str) -> str:
    """Return the command that installs extras."""
    return f'pip install "headwater[{",".join(names)}]"'


def why_missing(name: str) -> ImportError | None:
    """Return the reason why an extra cannot be used; None if it can."""
    for module in EXTRAS[name].modules:
        try:
            import_module(module)
        except ImportError as error:
            return error
    return None


def require(name: str, feature: str) -> None:
    """Check that an extra is installed before a feature of it is used; `ExtraMissingError` with the install command
    otherwise."""
    error = why_missing(name)
    if error is not None:
        raise ExtraMissingError(
            f"{feature} needs the extra {name!r}, which is not installed",
            detail=str(error),
            hint=install_command(name),
            extra=name,
            feature=feature,
        ) from error
