"""The join protocol with a second implementation on the other side: grpcio and messages that protoc made
for Python from the same .proto. A foreign shard joins our router, our shard joins a foreign router."""
import concurrent.futures
import contextlib
import json
import queue
import struct
import threading
import time

import grpc
import pytest

import grid
from fake_shard import STATS, FakeShard
from fake_shard import http as answer_of
from test_grpc_interop import LIMIT_S, SERVICE, pb  # noqa: F401
from test_join import F32, GridRouter, ask, error, wait_for


class ForeignShard:
    """LARQL's life of a shard: Announce, Ack, Heartbeats; HTTP is a FakeShard's."""

    def __init__(self, messages, router, http_shard, **announced):
        self.pb, self.out, self.heard = messages, queue.Queue(), queue.Queue()
        self.channel = grpc.insecure_channel(router.join)
        join = self.channel.stream_stream(f"/{SERVICE}/Join", request_serializer=messages.ServerMessage.SerializeToString,
                                          response_deserializer=messages.RouterMessage.FromString)
        self.call = join(iter(self.out.get, None), timeout=120 * grid.TIMEOUT_X)
        self.ended = None
        threading.Thread(target=self._read, daemon=True).start()
        fields = {"model_id": STATS["model"], "layer_start": 0, "layer_end": 7, "ram_bytes": 1 << 30,
                  "listen_url": http_shard.url, "vindex_hash": "0123456789abcdef", **announced}
        self.out.put(messages.ServerMessage(announce=messages.AnnounceMsg(**fields)))

    def _read(self):
        try:
            for message in self.call:
                self.heard.put(message)
        except grpc.RpcError as e:
            self.ended = e.code(), e.details()
            return
        self.ended = self.call.code(), self.call.details()

    def beat(self, **fields):
        self.out.put(self.pb.ServerMessage(heartbeat=self.pb.HeartbeatMsg(**fields)))

    def hear(self, kind):
        message = self.heard.get(timeout=LIMIT_S)
        assert message.WhichOneof("payload") == kind, message
        return getattr(message, kind)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.out.put(None)
        self.call.cancel()
        self.channel.close()


def echo(request, _):
    return answer_of(200, struct.pack("<IIf", struct.unpack_from("<I", request.body)[0], 1, 1.0) + request.body[16:], F32)


def test_a_foreign_shard_joins_our_router(pb):  # noqa: F811
    with GridRouter() as r, FakeShard(echo) as shard, ForeignShard(pb, r, shard) as s:
        name = s.hear("ack").server_id
        assert ask(r.url, 5)[0] == 200 and shard.requests[0].body[:4] == struct.pack("<I", 5)
        s.beat(cpu_pct=12.5, ram_used=1 << 29, requests_in_flight=3, req_per_sec=7,
               layer_stats=[pb.LayerLatency(layer=5, avg_ms=1.25, p99_ms=2.5)])
        wait_for(lambda: r.topology()["shards"][0]["load"] == {"cpu_pct": 12.5, "ram_used": 1 << 29,
                                                               "requests_in_flight": 3, "req_per_sec": 7.0})
        with grpc.insecure_channel(r.join) as operator:
            def call(method, request, answer):
                return operator.unary_unary(f"/{SERVICE}/{method}", request_serializer=type(request).SerializeToString,
                                            response_deserializer=answer.FromString)(request, timeout=LIMIT_S)
            status = call("Status", pb.StatusRequest(), pb.StatusResponse)
            assert [(x.server_id, x.layer_stats[0].layer) for x in status.servers] == [(name, 5)]
            assert not call("DrainServer", pb.DrainRequest(server_id=name), pb.AdminAck).ok  # the last replica
        s.out.put(pb.ServerMessage(dropping=pb.DroppingMsg(model_id="straw", layer_start=0, layer_end=7, reason="enough")))
        wait_for(lambda: r.topology()["shards"] == [])
        error(ask(r.url, 5), 503)


def test_a_foreign_shard_drains_when_told(pb):  # noqa: F811
    with GridRouter() as r, FakeShard(echo) as a, FakeShard(echo) as b, ForeignShard(pb, r, a) as s, ForeignShard(pb, r, b) as t:
        first = s.hear("ack").server_id
        t.hear("ack")
        with grpc.insecure_channel(r.join) as operator:
            drain = operator.unary_unary(f"/{SERVICE}/DrainServer", request_serializer=pb.DrainRequest.SerializeToString,
                                         response_deserializer=pb.AdminAck.FromString)
            assert drain(pb.DrainRequest(server_id=first, reason="moved"), timeout=LIMIT_S).ok
        told = s.hear("unassign")
        assert (told.model_id, told.layer_start, told.layer_end, told.reason) == ("straw", 0, 7, "moved")
        before = len(a.requests)
        assert [ask(r.url, 1)[0] for _ in range(20)] == [200] * 20
        assert len(a.requests) == before


@pytest.mark.parametrize("wrong,text", [({"model_id": "hay"}, "announced model 'hay'"), ({"layer_end": 8}, "of a model of 8"),
                                        ({"listen_url": "http://127.0.0.1:1"}, "does not answer"),
                                        ({"expert_end": 3}, "experts")])
def test_a_foreign_shard_is_told_why_not(pb, wrong, text):  # noqa: F811
    with GridRouter() as r, FakeShard(echo) as shard, ForeignShard(pb, r, shard, **wrong) as s:
        assert text in s.hear("reject").reason
        code, details = wait_for(lambda: s.ended)
        assert code == grpc.StatusCode.FAILED_PRECONDITION and text in details


def test_a_shard_that_is_silent_is_dropped(pb):  # noqa: F811
    """Its stream is open and its HTTP answers; 25 s without a word."""
    with GridRouter() as r, FakeShard(echo) as shard, ForeignShard(pb, r, shard) as s:
        s.hear("ack")
        began = time.monotonic()
        s.beat(cpu_pct=1)
        code, details = wait_for(lambda: s.ended, limit_s=60)
        assert time.monotonic() - began > 20
        assert code == grpc.StatusCode.DEADLINE_EXCEEDED and "no word from it for 25 s" in details
        assert r.topology()["shards"] == []


# ---- a foreign router --------------------------------------------------------------------


class ForeignRouter:
    """Notes what it hears; says what the test gives it."""

    def __init__(self, messages):
        self.pb, self.heard, self.say = messages, queue.Queue(), queue.Queue()
        self.streams_n = 0
        handler = grpc.stream_stream_rpc_method_handler(self._join, messages.ServerMessage.FromString,
                                                        messages.RouterMessage.SerializeToString)
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, {"Join": handler})])
        self.join = "127.0.0.1:%d" % self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def _join(self, messages, context):
        self.streams_n += 1
        self.key = dict(context.invocation_metadata()).get("authorization")

        def read():
            with contextlib.suppress(grpc.RpcError):
                for m in messages:
                    self.heard.put(m)
            self.heard.put(None)
            self.say.put(None)
        threading.Thread(target=read, daemon=True).start()
        yield from iter(self.say.get, None)

    def hear(self, kind):
        while True:
            m = self.heard.get(timeout=LIMIT_S)
            assert m is not None, f"the stream ended before {kind}"
            if m.WhichOneof("payload") == kind:
                return getattr(m, kind)
            assert m.WhichOneof("payload") == "heartbeat", m

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.stop(0).wait()


def test_our_shard_joins_a_foreign_router(pb, synthetic, tmp_path):  # noqa: F811
    keys = tmp_path / "grid.key"
    keys.write_text("a-key-of-this-grid-0123\n")
    with ForeignRouter(pb) as r, grid.shard(synthetic, "2-5", "--join", r.join, "--grid-key-file", str(keys)) as s:
        stats = json.loads(grid.request("GET", s.url, "/v1/stats", None, {"Authorization": "Bearer a-key-of-this-grid-0123"})[2])
        a = r.hear("announce")
        assert (a.model_id, a.layer_start, a.layer_end, a.listen_url) == (stats["model"], 2, 5, s.url)
        assert a.vindex_hash == stats["identity"] and a.ram_bytes > 0 and (a.expert_start, a.expert_end) == (0, 0)
        assert r.key == "Bearer a-key-of-this-grid-0123"
        r.say.put(pb.RouterMessage(ack=pb.AckMsg(server_id="srv-1")))
        assert r.hear("heartbeat").ram_used > 0  # at once, not after ten seconds
        r.say.put(pb.RouterMessage(unassign=pb.UnassignMsg(model_id=a.model_id, layer_start=2, layer_end=5, reason="test")))
        gone = r.hear("dropping")
        assert (gone.model_id, gone.layer_start, gone.layer_end) == (a.model_id, 2, 5)
        assert r.heard.get(timeout=LIMIT_S) is None and r.streams_n == 1


def test_our_shard_comes_again_to_a_foreign_router(pb, synthetic):  # noqa: F811
    with ForeignRouter(pb) as r, grid.shard(synthetic, "0-7", "--join", r.join):
        r.hear("announce")
        r.say.put(None)  # it ends the stream
        assert r.heard.get(timeout=LIMIT_S) is None
        r.hear("announce")
        assert r.streams_n == 2
