"""When a target is left alone: after failures in a row, as long as it asks for, and with one attempt to find out."""

import random

from headwater.core.clock import ManualClock
from headwater.core.errors import TargetDownError
from headwater.sinks.base.circuit_breaker import HOLD_MAX_S, Circuit, CircuitOptions, jittered
from tests.raising import raises


def made(clock: ManualClock) -> Circuit:
    return Circuit(clock, CircuitOptions(opens_after=3, open_s=10), random.Random(1))


def test_it_opens_after_failures_in_a_row_and_one_attempt_decides(clock: ManualClock) -> None:
    circuit = made(clock)
    circuit.failed("no")
    circuit.failed("no")
    circuit.worked()
    for _ in range(2):
        circuit.failed("no")
        circuit.admit("it")
        assert circuit.state == "closed"
    circuit.failed("500")
    assert circuit.state == "open"
    with raises(TargetDownError, failures=3) as caught:
        circuit.admit("it")
    assert caught.value.detail == "500"
    clock.advance("10 seconds")
    assert circuit.state == "half-open"
    circuit.admit("it")
    circuit.failed("503")  # the attempt fails: open again
    assert circuit.state == "open"
    clock.advance("10 seconds")
    circuit.admit("it")
    circuit.worked()
    assert circuit.state == "closed"
    circuit.failed("no")
    assert circuit.state == "closed"


def test_who_asks_to_be_left_alone_is_for_an_hour_at_most(clock: ManualClock) -> None:
    circuit = made(clock)
    circuit.failed("429", after_s=90)
    assert circuit.state == "closed"
    with raises(TargetDownError, left_s=90, failures=1):
        circuit.admit("it")
    clock.advance("90 seconds")
    circuit.admit("it")
    circuit.failed("429", after_s=1e9)
    clock.advance(f"{HOLD_MAX_S} s")
    circuit.admit("it")


def test_somebody_who_says_that_it_works_now_is_believed_once(clock: ManualClock) -> None:
    circuit = made(clock)
    for _ in range(3):
        circuit.failed("no")
    circuit.reset()
    assert circuit.state == "half-open"
    circuit.admit("it")
    circuit.failed("no")
    assert circuit.state == "open"


def test_pauses_are_not_all_equal_and_never_longer() -> None:
    pauses = {jittered(8.0, random.Random(seed)) for seed in range(50)}
    assert len(pauses) == 50
    assert min(pauses) >= 4.0
    assert max(pauses) <= 8.0
