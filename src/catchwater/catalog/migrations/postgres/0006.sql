-- Where clients of each listener connect to a broker.
UPDATE schema_version SET version = 6;

ALTER TABLE broker ADD COLUMN listeners TEXT NOT NULL DEFAULT '';
