"""What `import headwater` offers is there, and costs nothing until it is used."""

import json
import subprocess
import sys

import pytest

import headwater
from headwater.core import errors


def test_every_export_resolves() -> None:
    assert [name for name in headwater.__all__ if getattr(headwater, name, None) is None] == []


def test_every_error_is_exported() -> None:
    """A user can catch by name whatever can be raised."""
    public = {
        name for name, value in vars(errors).items() if isinstance(value, type) and not name.startswith("_")
    }
    public = {name for name in public if issubclass(getattr(errors, name), errors.HeadwaterError)}
    assert public <= set(headwater.__all__), (
        f"add to headwater.__all__: {sorted(public - set(headwater.__all__))}"
    )


def test_exports_are_sorted_and_listed_once() -> None:
    assert headwater.__all__ == sorted(set(headwater.__all__))
    assert dir(headwater) == headwater.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'headwater' has no attribute 'nothing_like_it'"):
        _ = headwater.nothing_like_it


def loaded_after(statement: str) -> set[str]:
    """The top-level packages that a fresh interpreter has loaded after `statement`."""
    script = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(done.stdout)}


def test_import_loads_nothing_heavy() -> None:
    heavy = {"pyspark", "pyarrow", "numpy", "sqlglot", "click", "rich", "pandas", "polars", "duckdb"}
    assert not loaded_after("import headwater") & heavy


def test_errors_can_be_caught_without_loading_the_log() -> None:
    assert "pyarrow" not in loaded_after("from headwater import HeadwaterError, ConflictError")


def test_the_log_loads_no_spark_and_no_frame_library() -> None:
    assert not loaded_after("from headwater import open, Workspace") & {
        "pyspark",
        "pandas",
        "polars",
        "duckdb",
    }
