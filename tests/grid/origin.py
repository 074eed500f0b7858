"""An HTTP origin of one file that serves ranges, and misbehaves on request."""
import http.server
import re
import threading


class Origin:
    """path -> bytes. `bend(handler, first, last, n)`, if set, may answer in its stead and return True."""

    def __init__(self, data, etag='"one"', key=None):
        self.data, self.etag, self.key = data, etag, key
        self.bend = None
        self.asked = []  # (first, last) of each request
        self.sent_n = 0
        origin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                origin.answer(self)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, h):
        n = len(self.data)
        if self.key and h.headers.get("Authorization") != "Bearer " + self.key:
            return self.plain(h, 401)
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", h.headers["Range"]).groups())
        last = min(last, n - 1)
        self.asked.append((first, last))
        if self.bend and self.bend(h, first, last, n):
            return None
        self.partial(h, first, last, n)
        return None

    def plain(self, h, status, headers=()):
        h.send_response(status)
        for k, v in headers:
            h.send_header(k, v)
        h.send_header("Content-Length", "0")
        h.end_headers()

    def partial(self, h, first, last, n, content_range=None, body=None, length=None):
        body = self.data[first:last + 1] if body is None else body
        h.send_response(206)
        h.send_header("Content-Range", content_range or f"bytes {first}-{last}/{n}")
        if self.etag:
            h.send_header("ETag", self.etag)
        h.send_header("Content-Length", str(len(body) if length is None else length))
        h.end_headers()
        self.sent_n += len(body)
        try:
            h.wfile.write(body)
        except OSError:
            h.close_connection = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
