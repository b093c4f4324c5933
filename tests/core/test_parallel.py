"""Threads that are waited for, also after Ctrl-C, and in a process that has none of them."""

import os
import signal
import threading
import time

import pytest

from headwater.core.parallel import WaitedThread


def test_a_join_that_was_interrupted_is_made_again() -> None:
    over, go_on = list[bool](), threading.Event()

    def work() -> None:
        go_on.wait(20)
        over.append(True)

    thread = WaitedThread(work, "work")
    with pytest.raises(RuntimeError):
        thread.join()  # it was not started
    assert not thread.is_alive()
    thread.start()

    def interrupt() -> None:
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        thread.join()
    assert thread.is_alive()
    thread.join(0.05)
    assert thread.is_alive()
    go_on.set()
    thread.join()
    assert (over, thread.is_alive()) == ([True], False)


def test_a_forked_child_waits_for_none_of_them() -> None:
    go_on = threading.Event()

    def work() -> None:
        go_on.wait(20)

    thread = WaitedThread(work, "work")
    thread.start()
    child = os.fork()
    if child == 0:
        thread.join()
        os._exit(7 if not thread.is_alive() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert thread.is_alive()
    go_on.set()
    thread.join()
