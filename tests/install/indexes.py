"""Package indexes on this machine, in place of the general one and of PyTorch's.

uv knows where PyTorch's index is, and no setting says otherwise. So `Proxy` stands between: uv
asks it for a connection to that host and gets one to a stand-in. It refuses every other host, as
a network does that reaches nothing else.
"""

import ssl
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

PYTORCH = "download.pytorch.org:443"
BESIDE = {".whl": ' data-core-metadata="true"'}


class Server(ThreadingHTTPServer):
    """`folder` holds the wheels that it serves; `asked` lists paths, and hosts asked of a proxy."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler], folder: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.folder = folder
        self.asked: list[str] = []
        self.certificate: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Index(BaseHTTPRequestHandler):
    """The simple repository API (PEP 503), with a wheel's metadata beside it (PEP 658).

    It has source archives too.
    """

    protocol_version = "HTTP/1.1"
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]  # no other makes it

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = self._page() if self.path.endswith("/") else self._file()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _page(self) -> bytes:
        package = self.path.rstrip("/").rpartition("/")[2]
        files = sorted(self._folder().glob(f"{package.replace('-', '_')}-*"))
        return "".join(
            f'<a href="/files/{quote(file.name)}"{BESIDE.get(file.suffix, "")}>{file.name}</a>\n'
            for file in files
        ).encode()

    def _file(self) -> bytes:
        path = self._folder() / unquote(self.path.rpartition("/")[2])
        if path.suffix != ".metadata":
            return path.read_bytes()
        with zipfile.ZipFile(path.with_suffix("")) as archive:
            (inside,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
            return archive.read(inside)

    def _folder(self) -> Path:
        assert self.server.folder
        return self.server.folder

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Proxy(Index):
    """Leads to PyTorch's index if `folder` is set, and else nowhere."""

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        if self.path != PYTORCH or not self.server.folder:
            return self.send_error(502)
        self.send_response(200)
        self.end_headers()
        assert self.server.certificate
        with self.server.certificate.wrap_socket(self.connection, server_side=True) as connection:
            Index(connection, self.client_address, self.server)
        self.close_connection = True


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], folder: Path | None) -> Iterator[Server]:
    with Server(handler, folder) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(30)


def make_certificate(folder: Path) -> ssl.SSLContext:
    """Of no authority: the installer is asked to accept it (UV_INSECURE_HOST)."""
    request = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=stand-in"
    files = "-keyout key.pem -out certificate.pem"
    subprocess.run(
        ["sh", "-c", f"{request} {files}"], cwd=folder, check=True, capture_output=True, timeout=60
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
