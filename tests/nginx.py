"""A real nginx in front of a runtime, by TLS, at `/` and below `/skep/`. Tests are skipped where none is installed."""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/homebrew/bin")
"""Where it is beside the path."""

_CONFIGURED = """
{user}
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        proxy_http_version 1.1;
        proxy_buffering off;
        proxy_read_timeout 1h;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
        proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        proxy_set_header X-Forwarded-Proto $scheme;
        proxy_set_header X-Forwarded-Host $http_host;
        location / {{ proxy_pass {upstream}/; }}
        location /skep/ {{ proxy_pass {upstream}/; }}
    }}
}}
"""


@asynccontextmanager
async def nginx(folder: Path, upstream: str, certificate: Path, key: Path) -> AsyncIterator[str]:
    """The address of an nginx that passes on to `upstream`, for as long as the block runs."""
    program = shutil.which("nginx", path=os.pathsep.join((os.environ.get("PATH", ""), *FOLDERS)))
    if program is None:
        pytest.skip("no nginx is installed")
    port = _free_port()
    configuration = _configured(folder, port=port, upstream=upstream, certificate=certificate, key=key)
    arguments = [program, "-p", str(folder), "-c", str(configuration), "-e", str(folder / "error.log")]
    running = await asyncio.create_subprocess_exec(*arguments, stderr=subprocess.DEVNULL)
    try:
        with anyio.fail_after(20):
            await _listening(port, running)
        yield f"https://127.0.0.1:{port}"
    finally:
        with anyio.CancelScope(shield=True):
            if running.returncode is None:
                running.terminate()
            await running.wait()


def _configured(folder: Path, **given: object) -> Path:
    folder.mkdir()
    user = "user root;" if os.getuid() == 0 else ""
    path = folder / "nginx.conf"
    path.write_text(_CONFIGURED.format(user=user, folder=folder, **given))
    return path


async def _listening(port: int, running: asyncio.subprocess.Process) -> None:
    while True:
        assert running.returncode is None, "nginx ended"
        try:
            async with await anyio.connect_tcp("127.0.0.1", port):
                return
        except OSError:
            await anyio.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
