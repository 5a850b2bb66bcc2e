"""A child process for tests of its supervisor: does what each message says."""

from __future__ import annotations

import os
import sys
import time

from analyzer.server import supervise

_held: list[bytes] = []


def main() -> None:
    server = supervise.channel()
    while True:
        word, _, rest = server.receive().partition(b" ")
        if word == b"echo":
            server.send(rest)
        elif word == b"environment":
            server.send(" ".join(sorted(os.environ)).encode())
        elif word == b"hold":
            _held.append(b"x" * int(rest))
            time.sleep(3600)
        elif word == b"half":
            os.write(int(sys.argv[1]), (1000).to_bytes(8, "big") + b"only this")
            time.sleep(3600)
        elif word == b"exit":
            os._exit(3)
        else:
            time.sleep(3600)


if __name__ == "__main__":
    main()
