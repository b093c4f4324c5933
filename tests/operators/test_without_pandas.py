"""Nothing that a tick computes with needs pandas, which is no dependency."""

import subprocess
import sys

SCRIPT = """
import sys


class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")


sys.meta_path.insert(0, Without())

import pyarrow as pa
from headwater.operators.zset.numpy_columns import normal, numpy_type
assert [numpy_type(kind)(1).itemsize for kind in (pa.int64(), pa.float32(), pa.bool_())] == [8, 4, 1]
assert str(normal(pa.array([-0.0, None])).to_pylist()) == "[0.0, None]"
"""


def test_types_of_lanes_are_found_without_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
