-- Where clients of each listener connect to a broker.
UPDATE schema_version SET version = 7;

ALTER TABLE broker ADD COLUMN listeners TEXT NOT NULL DEFAULT '';  -- JSON; empty where there is one
