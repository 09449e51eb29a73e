"""The value of a record as typed columns: from JSON, Avro or Protobuf to Arrow."""
