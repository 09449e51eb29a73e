"""A product's search document, put together from three topics that change on their own.

The index holds one document a product, and gets it whole whenever something in it changes. What
has not changed is not written: a feed that repeats its prices every night costs the index nothing.
"""

from dataclasses import dataclass, field

from catchwater import Context, Keyed, Out, function


@dataclass
class Product:
    """What the catalogue says."""

    sku: str
    at: int
    title: str
    text: str


@dataclass
class Price:
    """What the shop asks for it."""

    sku: str
    at: int
    cents: int


@dataclass
class Stock:
    """What lies in one warehouse."""

    sku: str
    at: int
    warehouse: str
    units: int


@dataclass
class Document:
    """What the index knows of a product."""

    sku: str
    title: str
    text: str
    cents: int
    available: bool


@dataclass
class Known:
    """The last that each topic said of a product, and the document made of it."""

    product: Product | None = None
    price: Price | None = None
    units: dict[str, int] = field(default_factory=dict)
    written: Document | None = None


@function(
    name="product-documents",
    inputs={"products": Product, "prices": Price, "stock": Stock},
    key="sku",
    event_time="at",
    late="process",
    output_id="sku",
)
class ProductDocuments(Keyed[Product | Price | Stock, Known, Document]):
    """The document of every product that has a description and a price."""

    def on_event(self, e: Product | Price | Stock, s: Known, ctx: Context) -> Out[Document]:
        """Take over what is new, and write the document if that changes it."""
        match e:
            case Product():
                s.product = e
            case Price():
                s.price = e
            case Stock():
                s.units[e.warehouse] = e.units
        if s.product is None or s.price is None:
            return
        available = any(units > 0 for units in s.units.values())
        document = Document(e.sku, s.product.title, s.product.text, s.price.cents, available)
        if document != s.written:
            s.written = document
            yield document
