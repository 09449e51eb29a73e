-- What each running pipeline has last reported of itself, for every broker to show.
UPDATE schema_version SET version = 4;

CREATE TABLE pipeline_report (
  name        TEXT COLLATE "C" PRIMARY KEY,
  received_ms BIGINT NOT NULL,
  report      TEXT NOT NULL
);
