"""The demo: what happens in it is a function of its seed, it ends well, and it leaves nothing behind."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from examples.shop.life import Arrival, Click, Order, Payment, Reprice, life, past_orders
from headwater.cli.program import cli

DEMO = [sys.executable, "-m", "headwater", "demo"]
VIEWS = 13
SINKS = 4


def test_a_seed_is_a_day() -> None:
    assert list(life(1, 10)) == list(life(1, 10))
    assert list(life(1, 10)) != list(life(2, 10))
    assert past_orders(1) == past_orders(1)


def test_actions_come_in_order_and_none_after_the_end() -> None:
    times = [action.at for action in life(3, 20)]
    assert times == sorted(times)
    assert times[-1] <= 20


def test_a_day_has_all_that_the_views_are_for() -> None:
    kinds: Counter[str] = Counter()
    late = skewed = refunds = sale = 0
    for action in life(7, 60):
        kinds[type(action.what).__name__] += 1
        match action.what:
            case Click(occurred=occurred, clock_error=error):
                late += action.at - occurred > 70
                skewed += error != 0
            case Payment(refund=refund):
                refunds += refund
            case Reprice():
                sale += 1
    assert set(kinds) == {"Click", "Order", "Payment", "Cancel", "Move", "Reprice", "Restock", "Arrival"}
    assert min(late, skewed, refunds) > 0
    assert sale == 2


def test_what_is_paid_or_bought_is_there() -> None:
    ordered, known = {order.id for order, _ in past_orders(7)}, set(range(1, 49))
    for action in life(7, 60):
        match action.what:
            case Arrival(product=product):
                known.add(product.id)
            case Order(id=number, product=bought):
                assert bought in known
                ordered.add(number)
            case Payment(order=number) if number < 9_000_000:
                assert number in ordered


def test_a_live_day_has_no_end() -> None:
    assert len(list(islice(life(7), 20_000))) == 20_000


def test_without_its_servers_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "pgserver" in name else found(name))
    done = CliRunner().invoke(cli, ["demo"])
    assert done.exit_code == 1
    assert 'pip install "headwater[demo]"' in done.stderr


@pytest.fixture
def place() -> Iterator[Path]:
    """Where the demo has its folder. As root its Postgres is somebody else, who has to be able to go there."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_survives_a_kill_and_ends_with_everything_equal(place: Path) -> None:
    environ = {**os.environ, "TMPDIR": str(place), "HEADWATER_DEMO_SECONDS": "8"}
    done = subprocess.run(DEMO, cwd=place, env=environ, capture_output=True, text=True, timeout=840)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "the engine runs again" in done.stdout
    assert "all equal" in done.stdout
    assert len(re.findall(r"│ view .*│ yes ", done.stdout)) == VIEWS
    assert len(re.findall(r"│ sink .*│ yes, ", done.stdout)) == SINKS
    assert re.search(r"commit to view +median [\d,]+ ms, p99 [\d,]+ ms", done.stdout)
    assert re.search(r"every click +([\d,]+) read = [\d,]+ used \+ [1-9]\d* late", done.stdout)
    assert re.search(r"alerts +[1-9]\d* fired, [1-9]\d* resolved", done.stdout)
    assert "equal to a query of the shop's database" in done.stdout
    assert list(place.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_in_the_middle_leaves_nothing_behind(place: Path) -> None:
    """Its processes are known by their environment; the folder is gone, and so are they."""
    environ = {**os.environ, "TMPDIR": str(place)}
    demo = subprocess.Popen(
        DEMO, cwd=place, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with demo:
        assert demo.stdout is not None
        guard = threading.Timer(240, demo.kill)
        guard.start()
        try:
            for line in demo.stdout:
                if "the console is at" in line:  # while the engine starts
                    break
            demo.send_signal(signal.SIGINT)
            _, said = demo.communicate(timeout=120)
        finally:
            guard.cancel()
    assert demo.returncode == 130, said
    assert list(place.iterdir()) == []
    if sys.platform == "linux":
        assert _processes_of(place) == []


def _processes_of(folder: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                str(folder).encode() in (process / "environ").read_bytes()
                and int(process.name) != os.getpid()
            ):
                found.append(int(process.name))
        except OSError:
            continue
    return found
