-- What a single broker's log consists of. Times are milliseconds since the Unix epoch; JSON
-- columns are read and written whole.
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);

-- One row: who this log is, how far the write-ahead log has been applied, which producer id is next.
CREATE TABLE log (
  cluster_id       TEXT    NOT NULL,
  applied_sequence INTEGER NOT NULL,
  next_producer_id INTEGER NOT NULL
);

CREATE TABLE topic (
  id         BLOB    PRIMARY KEY,
  name       TEXT    NOT NULL UNIQUE,
  partitions INTEGER NOT NULL,
  config     TEXT    NOT NULL               -- JSON object
) WITHOUT ROWID;

CREATE TABLE partition (
  topic_id           BLOB    NOT NULL,
  partition          INTEGER NOT NULL,
  log_start          INTEGER NOT NULL,
  high_watermark     INTEGER NOT NULL,
  bytes              INTEGER NOT NULL,
  earliest_timestamp INTEGER NOT NULL,
  PRIMARY KEY (topic_id, partition)
) WITHOUT ROWID;

CREATE TABLE producer (
  topic_id    BLOB    NOT NULL,
  partition   INTEGER NOT NULL,
  producer_id INTEGER NOT NULL,
  epoch       INTEGER NOT NULL,
  batches     TEXT    NOT NULL,             -- JSON [[base sequence, last sequence, base offset], …]
  last_ms     INTEGER NOT NULL,
  PRIMARY KEY (topic_id, partition, producer_id)
) WITHOUT ROWID;

CREATE TABLE object (
  id         INTEGER PRIMARY KEY,
  key        TEXT    NOT NULL UNIQUE,
  kind       TEXT    NOT NULL CHECK (kind IN ('chunk', 'segment')),
  state      TEXT    NOT NULL CHECK (state IN ('live', 'deleting')),
  size_bytes INTEGER NOT NULL,
  created_ms INTEGER NOT NULL
);

-- In the order in which a reader walks a partition: finding an offset is one descent.
CREATE TABLE run (
  topic_id      BLOB    NOT NULL,
  partition     INTEGER NOT NULL,
  last_offset   INTEGER NOT NULL,
  base_offset   INTEGER NOT NULL,
  object_id     INTEGER NOT NULL,
  byte_offset   INTEGER NOT NULL,
  byte_size     INTEGER NOT NULL,
  max_timestamp INTEGER NOT NULL,
  record_count  INTEGER NOT NULL,
  PRIMARY KEY (topic_id, partition, last_offset)
) WITHOUT ROWID;
CREATE INDEX run_by_object ON run (object_id);

CREATE TABLE group_offset (
  group_id     TEXT    NOT NULL,
  topic        TEXT    NOT NULL,
  partition    INTEGER NOT NULL,
  offset       INTEGER NOT NULL,
  leader_epoch INTEGER NOT NULL,
  metadata     TEXT    NOT NULL,
  PRIMARY KEY (group_id, topic, partition)
) WITHOUT ROWID;

CREATE TABLE pin (
  id             TEXT    PRIMARY KEY,
  owner          TEXT    NOT NULL,
  positions      TEXT    NOT NULL,          -- JSON [[topic, partition, offset], …]
  lease_until_ms INTEGER,
  created_ms     INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE sink_epoch (
  pipeline TEXT    NOT NULL,
  sink     TEXT    NOT NULL,
  epoch    INTEGER NOT NULL,
  topic    TEXT    NOT NULL,
  records  INTEGER NOT NULL,
  offsets  TEXT    NOT NULL,                -- JSON [[partition, first offset, last offset], …]
  checksum TEXT    NOT NULL,
  PRIMARY KEY (pipeline, sink, epoch)
) WITHOUT ROWID;
