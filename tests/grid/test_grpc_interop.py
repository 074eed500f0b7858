"""Our gRPC and our messages against those of another implementation: grpcio and protobuf,
with code that protoc generates from the same .proto. Both directions, plain and over TLS."""
import concurrent.futures
import importlib
import os
import queue
import subprocess
import sys

import grpc
import pytest

import grid
from papers import Papers

ROOT = os.path.join(os.path.dirname(__file__), "..", "..")
PEER = os.path.join(grid.BUILD, "tests", "grpc_peer")
SERVICE = "larql.grid.v1.GridService"
KEY = (("authorization", "Bearer sesame"),)
LIMIT_S = 30 * grid.TIMEOUT_X


@pytest.fixture(scope="module")
def pb(tmp_path_factory):
    """The generated messages."""
    out = str(tmp_path_factory.mktemp("pb"))
    subprocess.run(["protoc", f"--proto_path={os.path.join(ROOT, 'proto')}", f"--python_out={out}", "grid.proto"],
                   check=True)
    sys.path.insert(0, out)
    try:
        yield importlib.import_module("grid_pb2")
    finally:
        sys.path.remove(out)


@pytest.fixture(params=["plain", "tls"])
def papers(request, tmp_path):
    return Papers(tmp_path) if request.param == "tls" else None


def read(path):
    with open(path, "rb") as f:
        return f.read()


# ---- their client, our server ------------------------------------------------------------------


@pytest.fixture
def server(papers):
    certificate = papers.certify("server") if papers else ()
    with grid.Proc([PEER, "serve", *certificate], "grpc-peer") as proc:
        yield proc


@pytest.fixture
def channel(server, papers):
    if papers:
        made = grpc.secure_channel(server.url, grpc.ssl_channel_credentials(read(papers.ca)))
    else:
        made = grpc.insecure_channel(server.url)
    with made:
        yield made


def join(channel, pb, messages, metadata=KEY, **kwargs):
    call = channel.stream_stream(f"/{SERVICE}/Join", request_serializer=pb.ServerMessage.SerializeToString,
                                 response_deserializer=pb.RouterMessage.FromString)
    return call(messages, metadata=metadata, timeout=LIMIT_S, **kwargs)


def announce(pb):
    return pb.ServerMessage(announce=pb.AnnounceMsg(model_id="gemma", layer_start=0, layer_end=25, ram_bytes=1 << 40,
                                                    listen_url="http://10.0.0.1:8080", vindex_hash="ab" * 32))


def beat(pb, layers):
    stats = [pb.LayerLatency(layer=i, avg_ms=1.5, p99_ms=2.5) for i in range(layers)]
    return pb.ServerMessage(heartbeat=pb.HeartbeatMsg(cpu_pct=50, ram_used=1 << 33, requests_in_flight=3,
                                                      layer_stats=stats, req_per_sec=9))


def test_a_shard_joins_and_beats(channel, pb):
    """Turn by turn, as shards do."""
    say = queue.Queue()
    answers = join(channel, pb, iter(say.get, None))
    say.put(announce(pb))
    assert next(answers).ack.server_id == "http://10.0.0.1:8080"
    for layers in range(100):
        say.put(beat(pb, layers))
        assert next(answers).assign.layer_end == layers
    say.put(None)
    assert list(answers) == []
    assert answers.code() == grpc.StatusCode.OK


def test_many_beats_at_once(channel, pb):
    answers = join(channel, pb, (beat(pb, i % 300) for i in range(3000)))
    assert [m.assign.layer_end for m in answers] == [i % 300 for i in range(3000)]
    assert answers.code() == grpc.StatusCode.OK


def test_the_servers_end_has_its_text(channel, pb):
    say = queue.Queue()
    answers = join(channel, pb, iter(say.get, None))
    say.put(pb.ServerMessage(dropping=pb.DroppingMsg(model_id="gemma", reason="shutdown: 100 % fällig")))
    with pytest.raises(grpc.RpcError):
        next(answers)
    assert answers.code() == grpc.StatusCode.ABORTED
    assert answers.details() == "shutdown: 100 % fällig"
    say.put(None)


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer wrong"),)])
def test_a_wrong_key_is_unauthenticated(channel, pb, metadata):
    with pytest.raises(grpc.RpcError) as e:
        list(join(channel, pb, iter([announce(pb)]), metadata=metadata))
    assert e.value.code() == grpc.StatusCode.UNAUTHENTICATED
    assert e.value.details() == "invalid grid key: 100 % fälsch"


def test_messages_that_are_none_are_refused(channel, pb):
    for bad in (pb.ServerMessage(), pb.ServerMessage(announce=pb.AnnounceMsg(layer_start=3, layer_end=2)),
                pb.ServerMessage(dropping=pb.DroppingMsg(reason="x" * 2049))):
        with pytest.raises(grpc.RpcError) as e:
            list(join(channel, pb, iter([bad])))
        assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_compressed_messages_are_unimplemented(channel, pb):
    with pytest.raises(grpc.RpcError) as e:
        list(join(channel, pb, iter([beat(pb, 300)]), compression=grpc.Compression.Gzip))
    assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_unary_calls(channel, pb):
    status = channel.unary_unary(f"/{SERVICE}/Status", request_serializer=pb.StatusRequest.SerializeToString,
                                 response_deserializer=pb.StatusResponse.FromString)
    servers = status(pb.StatusRequest(), timeout=LIMIT_S).servers
    assert [s.layer_end for s in servers] == list(range(3000))  # 200 KB: over the first window
    drain = channel.unary_unary(f"/{SERVICE}/DrainServer", request_serializer=pb.DrainRequest.SerializeToString,
                                response_deserializer=pb.AdminAck.FromString)
    for i in range(200):
        ack = drain(pb.DrainRequest(server_id="s", reason=f"r{i}"), timeout=LIMIT_S)
        assert ack.ok and ack.message == f"r{i}"
    with pytest.raises(grpc.RpcError) as e:
        channel.unary_unary(f"/{SERVICE}/AssignRange")(b"", timeout=LIMIT_S)
    assert e.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_client_that_cancels_leaves_nothing(server, channel, pb):
    say = queue.Queue()
    answers = join(channel, pb, iter(say.get, None))
    say.put(announce(pb))
    next(answers)
    answers.cancel()
    say.put(None)
    again = join(channel, pb, iter([announce(pb)]))
    assert next(again).ack.server_id
    assert list(again) == []
    assert "closed code=CANCELLED lost=0" in server.log_text()


# ---- our client, their server --------------------------------------------------------------------


class Router:
    """GridService by grpcio."""

    def __init__(self, pb):
        self.pb = pb
        self.heard = []
        self.metadata = {}

    def join(self, messages, context):
        self.metadata = dict(context.invocation_metadata())
        for m in messages:
            self.heard.append(m)
            kind = m.WhichOneof("payload")
            if kind == "announce":
                yield self.pb.RouterMessage(ack=self.pb.AckMsg(server_id="s-1"))
            elif kind == "heartbeat":
                n = m.heartbeat.requests_in_flight
                yield self.pb.RouterMessage(unassign=self.pb.UnassignMsg(layer_end=n, reason="r" * (10 * n)))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "fertig: 100 % größer")

    def drain(self, request, context):
        assert context.time_remaining() <= 20
        return self.pb.AdminAck(ok=True, message=request.server_id)

    def assign(self, _request, context):
        """Never answers before the client's deadline."""
        waiting = concurrent.futures.Future()
        context.add_callback(lambda: waiting.set_result(None))
        waiting.result(LIMIT_S)
        return self.pb.AdminAck()

    def handlers(self):
        pb = self.pb
        return grpc.method_handlers_generic_handler(SERVICE, {
            "Join": grpc.stream_stream_rpc_method_handler(self.join, pb.ServerMessage.FromString,
                                                          pb.RouterMessage.SerializeToString),
            "DrainServer": grpc.unary_unary_rpc_method_handler(self.drain, pb.DrainRequest.FromString,
                                                               pb.AdminAck.SerializeToString),
            "AssignRange": grpc.unary_unary_rpc_method_handler(self.assign, pb.AssignRangeRequest.FromString,
                                                               pb.AdminAck.SerializeToString)})


def test_our_client_joins_their_router(pb, papers):
    router = Router(pb)
    theirs = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=4))
    theirs.add_generic_rpc_handlers((router.handlers(),))
    if papers:
        cert, key = papers.certify("router")
        port = theirs.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(read(key), read(cert))]))
    else:
        port = theirs.add_insecure_port("127.0.0.1:0")
    theirs.start()
    try:
        run = subprocess.run([PEER, "join", f"127.0.0.1:{port}", *([papers.ca] if papers else [])],
                             capture_output=True, text=True, timeout=LIMIT_S, check=False)
    finally:
        theirs.stop(None).wait()
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert [x for x in lines if x.startswith("ack")] == ["ack s-1"]
    assert [x for x in lines if x.startswith("unassign")] == [f"unassign {i} {10 * i}" for i in range(200)]
    assert "end FAILED_PRECONDITION lost=0 fertig: 100 % größer" in lines
    assert f"/{SERVICE}/DrainServer OK ok s-1" in lines
    assert any(x.startswith(f"/{SERVICE}/AssignRange DEADLINE_EXCEEDED") for x in lines), lines
    assert len(lines) == 204
    first, last = router.heard[0].announce, router.heard[-1].dropping
    assert (first.model_id, first.layer_end, first.ram_bytes) == ("gemma-ä", 25, 1 << 40)
    assert [m.heartbeat.requests_in_flight for m in router.heard[1:-1]] == list(range(200))
    assert len(last.reason) == 100000
    assert router.metadata["authorization"] == "Bearer sesame"


def test_nobody_there_is_said(papers):
    ca = [papers.ca] if papers else []
    run = subprocess.run([PEER, "join", "127.0.0.1:1", *ca], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    assert "end UNAVAILABLE lost=1 " in run.stdout and "refused" in run.stdout
