"""How our client is sure of a broker, and a broker of our client: TLS (`tls`) and SASL (`sasl`).

`settings` reads Kafka's options into what both take; `scram` is RFC 5802, without any I/O.
"""
