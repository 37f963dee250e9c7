"""A front door for sites: of the SuperLink's interface, only what docs/flower.md lets through."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import create_connection
from urllib.parse import unquote

from deployment import Deployment, free_port

PAGE = Path(__file__).parents[2] / "docs" / "flower.md"
NGINX = shutil.which(
    "nginx", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])
)


def configuration() -> str:
    """Return the configuration of nginx that the page shows."""
    (found,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


@contextmanager
def nginx(deployment: Deployment, program: str) -> Iterator[int]:
    """Run nginx with the page's configuration; yield its port."""
    port, folder = free_port(), deployment.folder
    server = configuration()
    changes = {
        "listen 443": f"listen 127.0.0.1:{port}",
        "server_name server.example": "server_name localhost",
        "proxy_ssl_name server.example": "proxy_ssl_name localhost",
        "127.0.0.1:8000": f"127.0.0.1:{deployment.port}",
        "/etc/episode/": f"{folder}/",
    }
    for old, new in changes.items():
        assert old in server
        server = server.replace(old, new)
    places = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    own = f"daemon off; pid {folder}/nginx.pid; error_log {folder}/nginx.log;\n"
    file = folder / "nginx.conf"
    file.write_text(f"{own}events {{}}\nhttp {{\naccess_log off;\n{places}{server}}}\n")
    process = subprocess.Popen([program, "-c", str(file), "-e", str(folder / "nginx.log")])
    try:
        _wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextmanager
def python(deployment: Deployment) -> Iterator[int]:
    """Do in this process what the page has nginx do; yield the port."""
    (allowed,) = re.findall(r"location ~ (\S+) {", configuration())

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = unquote(self.path.partition("?")[0])
            if not re.search(allowed, path):
                self._answer(403, {}, b"")
                return
            there = http.client.HTTPSConnection("127.0.0.1", deployment.port, context=trust)
            there.request(self.command, path, body, dict(self.headers))
            reply = there.getresponse()
            self._answer(reply.status, dict(reply.getheaders()), reply.read())
            there.close()

        def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

        do_GET = do_POST = handle_any  # noqa: N815 - names of http.server

    trust = ssl.create_default_context(cafile=deployment.authority)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(deployment.folder / "server.pem", deployment.folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=30)


def _wait_for(port: int) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)
