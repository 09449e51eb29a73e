"""A document is written when it is complete and when it changes, and not otherwise."""

from examples.search_document import Document, Price, Product, ProductDocuments, Stock

from catchwater.testing import Harness

LAMP = Product("s1", 1_000, "Lamp", "It glows.")


def test_a_document_needs_a_description_and_a_price() -> None:
    h = Harness(ProductDocuments)
    assert h.send(Price("s1", 500, 1_999)) == []
    assert h.send(LAMP) == [Document("s1", "Lamp", "It glows.", 1_999, available=False)]


def test_only_changes_are_written() -> None:
    h = Harness(ProductDocuments)
    h.send(LAMP, Price("s1", 1_000, 1_999))
    assert h.send(Price("s1", 2_000, 1_999)) == []
    assert [d.cents for d in h.send(Price("s1", 3_000, 1_499))] == [1_499]


def test_it_is_available_while_any_warehouse_has_it() -> None:
    h = Harness(ProductDocuments)
    h.send(LAMP, Price("s1", 1_000, 1_999))
    stock = [Stock("s1", 2_000, "north", 3), Stock("s1", 2_100, "south", 5)]
    stock += [Stock("s1", 2_200, "north", 0), Stock("s1", 2_300, "south", 0)]
    assert [d.available for d in h.send(*stock)] == [True, False]
    h.crash_and_restore(at=1)
    h.check_replay()
