-- Segments may have their records in a Parquet object, too. It is told by the run that the segment
-- is, so it is given up with that run, whoever takes it out.
UPDATE schema_version SET version = 2;

ALTER TABLE object DROP CONSTRAINT object_kind_check;
ALTER TABLE object ADD CONSTRAINT object_kind_check
  CHECK (kind IN ('chunk', 'segment', 'parquet'));

-- All of them null where there is no such object.
ALTER TABLE run ADD COLUMN parquet_id BIGINT;
ALTER TABLE run ADD COLUMN parquet_records BIGINT;
ALTER TABLE run ADD COLUMN parquet_crc BIGINT;
ALTER TABLE run ADD COLUMN parquet_schema TEXT;
CREATE INDEX run_by_parquet ON run (parquet_id) WHERE parquet_id IS NOT NULL;
