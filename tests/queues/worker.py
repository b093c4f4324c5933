"""A process that works on a queue until it is killed, or until nothing comes any more."""

import sys

import headwater as hw


def main(folder: str) -> None:
    with hw.open(folder) as ws:
        queue = ws.queue("work")
        print("ready", flush=True)
        with queue.work(lambda message: message.row, threads=2, max=4, delay="10 ms", idle=2) as worker:
            worker.wait()


if __name__ == "__main__":
    main(sys.argv[1])
