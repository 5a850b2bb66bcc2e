"""Start Ray nodes of one CPU each in this network namespace, then run a script beside them.

Usage: in_cluster.py NODES SCRIPT ARGUMENT...
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PORT = 6379
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def main() -> int:
    nodes, script, arguments = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:  # `ip link set lo up`
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    folder = tempfile.mkdtemp(prefix="hb-ray-", dir="/tmp")  # short: it holds sockets
    environment = os.environ | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_ADDRESS": f"127.0.0.1:{PORT}",
    }
    ray = str(Path(sys.executable).with_name("ray"))
    common = ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=300000000"]
    try:
        for number in range(nodes):
            role = (
                [f"--address=127.0.0.1:{PORT}"]
                if number
                else ["--head", f"--port={PORT}", "--include-dashboard=false"]
            )
            role += [] if number else [f"--temp-dir={folder}"]
            done = subprocess.run(
                [ray, "start", *role, *common],
                env={k: v for k, v in environment.items() if k != "RAY_ADDRESS"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            if done.returncode:
                print(done.stdout)
                return 1
        return subprocess.run([sys.executable, script, *arguments], env=environment).returncode
    finally:
        subprocess.run(["rm", "-rf", folder], check=False)


if __name__ == "__main__":
    sys.exit(main())
