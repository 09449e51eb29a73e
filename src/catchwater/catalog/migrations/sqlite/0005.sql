-- What each running pipeline has last reported of itself, for every broker to show.
UPDATE schema_version SET version = 5;

CREATE TABLE pipeline_report (
  name        TEXT PRIMARY KEY,
  received_ms INTEGER NOT NULL,                 -- by the clock of the broker that took it
  report      TEXT NOT NULL                     -- JSON
);
