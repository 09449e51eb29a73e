"""The page that Prometheus reads."""

from catchwater.broker.metrics import Metrics
from catchwater.objects.retry import RequestCounts


def test_the_object_stores_requests_are_shown_by_operation_and_outcome() -> None:
    metrics, counts = Metrics(), RequestCounts()
    metrics.show_store(counts)
    counts.add("put", "ok")
    counts.add("put", "ok")
    counts.add("get_range", "retried")
    page = metrics.page().decode()
    assert 'catchwater_object_store_requests_total{op="put",outcome="ok"} 2.0' in page
    assert 'catchwater_object_store_requests_total{op="get_range",outcome="retried"} 1.0' in page


def test_what_is_counted_at_every_request_is_shown_as_prometheus_shows_it() -> None:
    metrics = Metrics()
    metrics.bytes_in.total += 7
    fetches = metrics.request_seconds.of("Fetch")
    for seconds in (0.0005, 0.0007, 9.0):
        fetches.observe(seconds)
    assert metrics.request_seconds.of("Fetch") is fetches
    page = metrics.page().decode()
    assert "catchwater_bytes_in_total 7.0" in page
    assert "catchwater_bytes_out_total 0.0" in page
    shown = {
        line.split(" ")[0]: float(line.split(" ")[1])
        for line in page.splitlines()
        if line.startswith("catchwater_request_seconds")
    }
    name = "catchwater_request_seconds"
    assert shown[name + '_bucket{api="Fetch",le="0.0005"}'] == 1
    assert shown[name + '_bucket{api="Fetch",le="0.001"}'] == 2
    assert shown[name + '_bucket{api="Fetch",le="5.0"}'] == 2
    assert shown[name + '_bucket{api="Fetch",le="+Inf"}'] == 3
    assert shown[name + '_count{api="Fetch"}'] == 3
    assert abs(shown[name + '_sum{api="Fetch"}'] - 9.0012) < 1e-9
    assert "catchwater_request_queue_seconds_count 0.0" in page
