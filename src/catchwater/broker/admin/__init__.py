"""Administration in Kafka's terms: what is told of settings, brokers and replicas, and altered."""
