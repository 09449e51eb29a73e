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
