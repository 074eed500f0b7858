"""Three questions to a router's /v1/health: can it route, can it route everything, is it there."""
import grid


def health(url, query=""):
    return grid.get(url, f"/v1/health{query}")[0]


def test_coverage_asked_for(synthetic):
    with grid.shard(synthetic, "0-3") as a, grid.shard(synthetic, "4-7") as b, grid.router(f"0-3={a.url},4-7={b.url}") as r:
        assert [health(r.url, q) for q in ("", "?coverage=full", "?coverage=none")] == [200, 200, 200]


def test_half_a_model(synthetic):
    with grid.shard(synthetic, "0-3") as a, grid.router(f"0-3={a.url}") as r:
        assert [health(r.url, q) for q in ("", "?coverage=full", "?coverage=none")] == [200, 503, 200]


def test_nothing_to_route_to():
    with grid.router("0-3=http://127.0.0.1:1") as r:
        assert [health(r.url, q) for q in ("", "?coverage=full", "?coverage=none", "?coverage=no")] == [503, 503, 200, 503]
