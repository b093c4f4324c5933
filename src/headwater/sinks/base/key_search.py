"""Search for rows by key in files that have no index: hashes of keys, sorted, in numpy columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, identities, spread


@dataclass(frozen=True)
class KeyIdentities:
    """Hashes of the keys of rows, in ascending order of the first half."""

    first: Hashes
    second: Hashes
    places: npt.NDArray[np.uint32]

    @staticmethod
    def of(columns: Sequence[pa.Array], rows: int) -> KeyIdentities:
        """Return the hashes of rows with these key columns."""
        first, second = identities(columns, rows, exact=False)
        order = np.argsort(first, kind="stable")
        return KeyIdentities(first[order], second[order], order.astype(np.uint32))

    def find(self, wanted: KeyIdentities) -> Indices:
        """Return the indices, ascending, of the rows whose keys are among the wanted ones."""
        low = np.searchsorted(self.first, wanted.first, "left")
        high = np.searchsorted(self.first, wanted.first, "right")
        hit = np.repeat(np.arange(len(low)), high - low)
        at = spread(low.astype(np.int64), (high - low).astype(np.int64))
        same = self.second[at] == wanted.second[hit]
        return np.unique(self.places[at[same]]).astype(np.int64)
