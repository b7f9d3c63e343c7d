"""llama.cpp's RPC servers as devices of this process."""

from __future__ import annotations

from csb.native.checks import text
from csb.native.library import library

TIMEOUT = 5.0  # seconds until a server that does not answer is given up


def add_rpc(servers: str, timeout: float = TIMEOUT) -> None:
    """Adds the devices of servers ("host:port", joined by commas) to this process: RPC0, RPC1 ...

    They stay until the process ends, and so does the connection: a server serves one client at a
    time. ArgumentError: no address. UnsupportedError: this build has no RPC. DeviceError: no such
    host, no answer within `timeout` seconds, or no server of this llama.cpp's protocol.
    """
    for server in servers.split(","):
        library().csb_library_add_rpc(text(server.strip(), "server"), max(1, int(timeout * 1000)))
