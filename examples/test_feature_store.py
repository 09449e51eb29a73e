"""Twelve windows hold a payment; each gives the features as of its end."""

from examples.feature_store import CardFeatures, CardFeaturesOfTheHour, Payment

from catchwater.testing import Harness

MINUTE = 60_000


def test_features_follow_the_last_hour() -> None:
    h = Harness(CardFeaturesOfTheHour)
    early = Payment("c1", "1", 61 * MINUTE, "m1", 1_000)
    later = Payment("c1", "2", 68 * MINUTE, "m2", 3_000)
    features = h.send(early, later, later) + h.advance_watermark(75 * MINUTE)
    assert features == [
        CardFeatures("c1", 65 * MINUTE, 1, 1_000, 1_000, 1_000.0, 1),
        CardFeatures("c1", 70 * MINUTE, 2, 4_000, 3_000, 2_000.0, 2),
        CardFeatures("c1", 75 * MINUTE, 2, 4_000, 3_000, 2_000.0, 2),
    ]
    rest = h.advance_time("1h")
    assert [each.as_of // MINUTE for each in rest] == [80, 85, 90, 95, 100, 105, 110, 115, 120, 125]
    assert rest[-1].payments == 1


def test_a_replay_gives_the_same_features() -> None:
    h = Harness(CardFeaturesOfTheHour)
    for minute in range(0, 180, 7):
        h.send(Payment("c1", str(minute), minute * MINUTE, f"m{minute % 3}", 100 + minute))
    h.crash_and_restore(at=5)
    h.check_replay()
