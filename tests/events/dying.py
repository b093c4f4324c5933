"""A process that reacts, serves or calls, and kills itself (-9) at a step: before or after its n-th write to the log."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import headwater as hw
from headwater.events import Reaction, Recorded, Send, reactions
from tests.events.accounts import Deposit, Deposited, Opened, accounts
from tests.events.paying import Paid, Pay, serving

reactions.BATCH_EVENTS = 3  # so that the position moves several times in one run
NEVER = 0


def reaction(ws: hw.Workspace) -> Reaction:
    """Whoever opens an account gets one unit, and of what others pay in one more goes to the bank."""
    store = ws.store(accounts)

    @ws.reaction("share", store)
    def share(event: Opened | Deposited, recorded: Recorded[Any]) -> Send[Any] | list[Send[Any]]:
        if isinstance(event, Opened):
            return [store.send(recorded.aggregate_id, Deposit(1)), store.send("bank", Deposit(100))]
        return [] if recorded.actor == "reaction share" else store.send("bank", Deposit(event.amount))

    return share


def die_at(ws: hw.Workspace, step: int) -> None:
    """Have this process die at a step; NEVER is not at all."""
    count = 0

    def dying(write: Callable[..., Any]) -> Callable[..., Any]:
        def written(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            done = write(*arguments, **named)
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return written

    log: Any = ws.log
    log.append, log.move_cursor = dying(log.append), dying(log.move_cursor)


def main(folder: str, role: str, step: int) -> None:
    with hw.open(folder) as ws:
        match role:
            case "react":
                made = reaction(ws)
                die_at(ws, step)
                made.run()
            case "keep reacting":
                made = reaction(ws)
                print("ready", flush=True)
                made.start()
                sys.stdin.read()
                made.stop()
            case "serve":
                service = serving(ws)
                die_at(ws, step)
                service.run()
            case "call":
                die_at(ws, step)
                assert ws.call("pay", Pay("a", 7), 30, call_id="1", returns=Paid) == Paid(7, 1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
