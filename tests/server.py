"""A web server on this machine that can be told to misbehave, for testing downloads."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """Serves `files`; each request uses up one of `faults`: a status, "cut" (send half) or "all" (no Range)."""

    def __init__(self, files: dict[str, bytes], faults: list[int | str]) -> None:
        self.files, self.faults = files, faults
        self.asked: list[str | None] = []  # the Range of each request
        self.url = ""


@contextlib.contextmanager
def serving(files: dict[str, bytes], faults: list[int | str] | None = None) -> Iterator[Server]:
    state = Server(files, faults or [])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            state.asked.append(wanted)
            fault = state.faults.pop(0) if state.faults else None
            body = state.files.get(self.path.rsplit("/", 1)[-1])
            if isinstance(fault, int) or body is None:
                self.send_error(fault if isinstance(fault, int) else 404)
                return
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and fault != "all" else 0
            if start and start >= len(body):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            body = body[start:]
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
