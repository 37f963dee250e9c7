"""Hosts as network namespaces, joined by a link with delay and bandwidth: root on Linux.

Each host has one TUN device; packets between them pass through this process, which holds each
back: `rate` bits per second leave a host, and arrive half a round trip later. (The kernel's own
netem is often not built in.)
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType

_NEW_NET = 0x40000000
_SET_INTERFACE, _IS_TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_QUEUE_SECONDS = 2.0
"""What waits longer than this to leave a host is dropped, as by a router."""


def why_not() -> str | None:
    """What keeps this machine from making such hosts; None if nothing does."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "it needs root, to make network namespaces"
    if shutil.which("ip") is None:
        return "it needs the command ip (Debian's iproute2)"
    if not Path("/dev/net/tun").exists():
        return "it needs /dev/net/tun"
    name = f"episode-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if done.returncode:
        return f"network namespaces cannot be made here ({done.stderr.strip()})"
    _ip("netns", "del", name)
    return None


class WideAreaLink:
    """`hosts` namespaces on one link; a context manager that leaves nothing behind."""

    def __init__(self, hosts: int, round_trip_ms: float, megabits: float, mtu: int = 9000) -> None:
        self.names = [f"episode-{os.getpid()}-{k}" for k in range(hosts)]
        self.addresses = [f"10.88.0.{k + 1}" for k in range(hosts)]
        self._delay = round_trip_ms / 2e3
        self._rate = megabits * 1e6
        self._mtu = mtu
        self._devices: list[int] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._forward, name="wide-area-link")

    def __enter__(self) -> WideAreaLink:
        try:
            for name, address in zip(self.names, self.addresses, strict=True):
                _ip("netns", "add", name)
                self._devices.append(_tun_in(name))
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "addr", "add", f"{address}/24", "dev", "wan0")
                _ip("-n", name, "link", "set", "wan0", "mtu", str(self._mtu), "up")
        except BaseException:
            self._clear()
            raise
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.set()
        self._thread.join(timeout=10)
        self._clear()

    def command(self, host: int, argv: list[str]) -> list[str]:
        """The command, to be run on that host."""
        return ["ip", "netns", "exec", self.names[host], *argv]

    def _clear(self) -> None:
        for device in self._devices:
            os.close(device)
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def _forward(self) -> None:
        """Reads packets, and delivers each when it is due."""
        hosts = {bytes(map(int, a.split("."))): k for k, a in enumerate(self.addresses)}
        free_at = [0.0] * len(self._devices)
        due: list[tuple[float, int, int, bytes]] = []
        count = 0
        while not self._ends.is_set():
            wait = 0.2 if not due else max(0.0, min(0.2, due[0][0] - time.monotonic()))
            readable, _, _ = select.select(self._devices, [], [], wait)
            now = time.monotonic()
            for device in readable:
                packet = os.read(device, 65535)
                source = self._devices.index(device)
                target = hosts.get(packet[16:20])
                if packet[0] >> 4 != 4 or target is None or free_at[source] > now + _QUEUE_SECONDS:
                    continue
                free_at[source] = max(now, free_at[source]) + len(packet) * 8 / self._rate
                count += 1
                heapq.heappush(due, (free_at[source] + self._delay, count, target, packet))
            while due and due[0][0] <= time.monotonic():
                _, _, target, packet = heapq.heappop(due)
                os.write(self._devices[target], packet)


def _tun_in(namespace: str) -> int:
    """A TUN device named wan0 in that namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        if libc.setns(there, _NEW_NET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR)
            request = struct.pack("16sH22x", b"wan0", _IS_TUN_WITHOUT_HEADER)
            fcntl.ioctl(device, _SET_INTERFACE, request)
            return device
        finally:
            libc.setns(here, _NEW_NET)
    finally:
        os.close(here)
        os.close(there)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
