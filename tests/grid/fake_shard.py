"""A shard of straw: a raw socket server that a test scripts, byte by byte.

It notes each request as it came (head and body bytes untouched) and answers
/v1/stats by itself, so that a router takes it for a shard.
"""
import json
import socket
import threading

STATS = {"model": "straw", "family": "llama", "mode": "ffn-service", "layers": 8, "hidden_size": 6,
         "features_per_layer": 8, "layer_start": 0, "layer_end": 7, "dtype": "F32", "wire": ["f32", "f16", "i8"]}


def http(status, body, content_type="application/json", extra=""):
    """A whole answer as bytes."""
    return (f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
            ).encode() + body


class Request:
    def __init__(self, head, body):
        lines = head.split(b"\r\n")
        self.line = lines[0].decode()
        self.path = self.line.split()[1]
        self.headers = [tuple(x.decode().split(": ", 1)) for x in lines[1:] if x]
        self.body = body

    def all(self, name):
        return [v for k, v in self.headers if k.lower() == name.lower()]


class FakeShard:
    """answer(request, connection) -> bytes to send, or None: it has dealt with the
    connection itself. Connections stay open unless close_after is set."""

    def __init__(self, answer, stats=None, close_after=False, port=0):
        self.answer, self.close_after = answer, close_after
        self.stats = json.dumps(stats or STATS).encode()
        self.requests = []  # those to /v1/walk-ffn
        self.connections_n = 0
        self.listener = socket.create_server(("127.0.0.1", port))
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        self.open = []
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            with self.lock:
                self.connections_n += 1
                self.open.append(conn)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    more = conn.recv(65536)
                    if not more:
                        return
                    data += more
                head, data = data.split(b"\r\n\r\n", 1)
                request = Request(head, b"")
                length = int((request.all("Content-Length") or ["0"])[0])
                while len(data) < length:
                    more = conn.recv(65536)
                    if not more:
                        return
                    data += more
                request.body, data = data[:length], data[length:]
                if request.path == "/v1/stats":
                    conn.sendall(http(200, self.stats))
                    continue
                self.requests.append(request)
                out = self.answer(request, conn)
                if out is None:
                    return
                conn.sendall(out)
                if self.close_after:
                    return
        except OSError:
            pass
        finally:
            conn.close()

    def close(self):
        self.listener.close()
        with self.lock:
            for c in self.open:
                try:
                    c.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
