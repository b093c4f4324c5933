"""The contract suite for log backends: all subjects in one class."""

from __future__ import annotations

from headwater.testing.contract.appending import AppendingContract
from headwater.testing.contract.backpressure import BacklogContract
from headwater.testing.contract.catalog import CatalogContract
from headwater.testing.contract.commit_ids import NamingContract
from headwater.testing.contract.cursors import CursorContract
from headwater.testing.contract.cuts import CuttingContract
from headwater.testing.contract.deletion import DeletingContract
from headwater.testing.contract.device_clocks import DeviceContract
from headwater.testing.contract.groups import GroupContract
from headwater.testing.contract.idempotent_producers import ProducingContract
from headwater.testing.contract.maintenance import UpkeepContract
from headwater.testing.contract.optimistic_concurrency import ExpectingContract
from headwater.testing.contract.producer_watermarks import ProducerWatermarkContract
from headwater.testing.contract.reading import ReadingContract
from headwater.testing.contract.staging import StagingContract
from headwater.testing.contract.topic_names import NameContract
from headwater.testing.contract.topics import TopicContract
from headwater.testing.contract.types import TypeContract
from headwater.testing.contract.waiting import WaitingContract
from headwater.testing.contract.watermarks import TimeContract


class LogContract(
    TopicContract,
    NameContract,
    NamingContract,
    CatalogContract,
    TypeContract,
    AppendingContract,
    BacklogContract,
    ExpectingContract,
    ProducingContract,
    StagingContract,
    ReadingContract,
    TimeContract,
    ProducerWatermarkContract,
    DeviceContract,
    WaitingContract,
    CuttingContract,
    CursorContract,
    GroupContract,
    UpkeepContract,
    DeletingContract,
):
    """The tests of a log backend. Subclass it as `class TestMyLog(LogContract)`, with `make_log` and, for logs on disk,
    `reopen`.

    Every test has its own log `self.log`, under the manual clock `self.clock`.
    """
