"""How our client is sure of a broker, and a broker of our client: TLS (`tls`) and SASL (`sasl`).

`settings` reads Kafka's options, and Java's files of them, into what both take; `oauth` gets the
tokens of RFC 7628.
"""
