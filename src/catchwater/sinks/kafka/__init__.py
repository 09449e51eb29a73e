"""Chapter 10, another Kafka: an epoch is one transaction with a record of it in a ledger topic."""
