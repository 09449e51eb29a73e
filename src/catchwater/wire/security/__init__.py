"""How our client is sure of a broker, and a broker of our client: TLS (`tls`) and SASL (`sasl`).

`settings` reads Kafka's options into what both take, `properties` Java's files of them; `scram` is
RFC 5802, without any I/O, and `oauth` gets the tokens of RFC 7628.
"""
