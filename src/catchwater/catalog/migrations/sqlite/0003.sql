-- Segments may have their records in a Parquet object, too. It is told by the run that the segment
-- is, so it is given up with that run, whoever takes it out.
UPDATE schema_version SET version = 3;

-- SQLite cannot widen a CHECK: the table is made again, with the same ids.
CREATE TABLE object_new (
  id         INTEGER PRIMARY KEY,
  key        TEXT    NOT NULL UNIQUE,
  kind       TEXT    NOT NULL CHECK (kind IN ('chunk', 'segment', 'parquet')),
  state      TEXT    NOT NULL CHECK (state IN ('live', 'deleting')),
  size_bytes INTEGER NOT NULL,
  created_ms INTEGER NOT NULL
);
INSERT INTO object_new SELECT id, key, kind, state, size_bytes, created_ms FROM object;
DROP TABLE object;
ALTER TABLE object_new RENAME TO object;

-- All of them null where there is no such object.
ALTER TABLE run ADD COLUMN parquet_id INTEGER;
ALTER TABLE run ADD COLUMN parquet_records INTEGER;
ALTER TABLE run ADD COLUMN parquet_crc INTEGER;
ALTER TABLE run ADD COLUMN parquet_schema TEXT;
CREATE INDEX run_by_parquet ON run (parquet_id) WHERE parquet_id IS NOT NULL;
