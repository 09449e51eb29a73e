"""One handler per Kafka API key, named `kNN_name`; each head lists versions and omissions."""
