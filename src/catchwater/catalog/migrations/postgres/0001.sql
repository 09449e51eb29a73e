-- The tables of many brokers' log; the same names as in SQLite. Text is compared byte by byte, so
-- that both databases sort alike. Times are milliseconds since the Unix epoch.
CREATE TABLE schema_version (version INTEGER NOT NULL);
INSERT INTO schema_version VALUES (1);

CREATE TABLE log (
  cluster_id       TEXT   NOT NULL,
  applied_sequence BIGINT NOT NULL,
  next_producer_id BIGINT NOT NULL,
  next_epoch       BIGINT NOT NULL DEFAULT 1,
  last_backup      BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE topic (
  id         BYTEA   PRIMARY KEY,
  name       TEXT    COLLATE "C" NOT NULL UNIQUE,
  partitions INTEGER NOT NULL,
  config     TEXT    NOT NULL
);

-- Updated by every commit: room in the page lets a row be replaced beside itself.
CREATE TABLE partition (
  topic_id           BYTEA   NOT NULL,
  partition          INTEGER NOT NULL,
  log_start          BIGINT  NOT NULL,
  high_watermark     BIGINT  NOT NULL,
  bytes              BIGINT  NOT NULL,
  earliest_timestamp BIGINT  NOT NULL,
  PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 50);

CREATE TABLE producer (
  topic_id    BYTEA   NOT NULL,
  partition   INTEGER NOT NULL,
  producer_id BIGINT  NOT NULL,
  epoch       INTEGER NOT NULL,
  batches     TEXT    NOT NULL,
  last_ms     BIGINT  NOT NULL,
  PRIMARY KEY (topic_id, partition, producer_id)
) WITH (fillfactor = 50);

CREATE TABLE object (
  id         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  key        TEXT   COLLATE "C" NOT NULL UNIQUE,
  kind       TEXT   NOT NULL CHECK (kind IN ('chunk', 'segment')),
  state      TEXT   NOT NULL CHECK (state IN ('live', 'deleting')),
  size_bytes BIGINT NOT NULL,
  created_ms BIGINT NOT NULL
);
CREATE INDEX object_chunks ON object (id) WHERE kind = 'chunk';

CREATE TABLE run (
  topic_id        BYTEA   NOT NULL,
  partition       INTEGER NOT NULL,
  last_offset     BIGINT  NOT NULL,
  base_offset     BIGINT  NOT NULL,
  object_id       BIGINT  NOT NULL,
  byte_offset     BIGINT  NOT NULL,
  byte_size       BIGINT  NOT NULL,
  max_timestamp   BIGINT  NOT NULL,
  record_count    BIGINT  NOT NULL,
  reach_timestamp BIGINT  NOT NULL,
  PRIMARY KEY (topic_id, partition, last_offset)
);
CREATE INDEX run_by_object ON run (object_id);
CREATE INDEX run_by_time ON run (topic_id, partition, reach_timestamp, last_offset);

CREATE TABLE group_offset (
  group_id     TEXT    COLLATE "C" NOT NULL,
  topic        TEXT    COLLATE "C" NOT NULL,
  partition    INTEGER NOT NULL,
  "offset"     BIGINT  NOT NULL,
  leader_epoch INTEGER NOT NULL,
  metadata     TEXT    NOT NULL,
  PRIMARY KEY (group_id, topic, partition)
);

CREATE TABLE pin (
  id             TEXT   COLLATE "C" PRIMARY KEY,
  owner          TEXT   NOT NULL,
  positions      TEXT   NOT NULL,
  lease_until_ms BIGINT,
  created_ms     BIGINT NOT NULL,
  max_bytes      BIGINT,
  state          TEXT   NOT NULL DEFAULT 'reserved'
);

CREATE TABLE sink_epoch (
  pipeline TEXT   COLLATE "C" NOT NULL,
  sink     TEXT   COLLATE "C" NOT NULL,
  epoch    BIGINT NOT NULL,
  topic    TEXT   NOT NULL,
  records  BIGINT NOT NULL,
  offsets  TEXT   NOT NULL,
  checksum TEXT   NOT NULL,
  PRIMARY KEY (pipeline, sink, epoch)
);

CREATE TABLE txn (
  transactional_id TEXT    COLLATE "C" PRIMARY KEY,
  producer_id      BIGINT  NOT NULL,
  epoch            INTEGER NOT NULL,
  state            TEXT    NOT NULL,
  timeout_ms       BIGINT  NOT NULL,
  started_ms       BIGINT  NOT NULL,
  version          INTEGER NOT NULL,
  last_epoch       INTEGER NOT NULL,
  updated_ms       BIGINT  NOT NULL,
  partitions       TEXT    NOT NULL
);
CREATE INDEX txn_by_producer ON txn (producer_id);
-- Every broker looks for these every second; an embedded log has them in memory.
CREATE INDEX txn_unfinished ON txn (transactional_id)
WHERE state IN ('ongoing', 'prepare_commit', 'prepare_abort');

CREATE TABLE open_txn (
  topic_id     BYTEA   NOT NULL,
  partition    INTEGER NOT NULL,
  producer_id  BIGINT  NOT NULL,
  first_offset BIGINT  NOT NULL,
  PRIMARY KEY (topic_id, partition, producer_id)
);
CREATE INDEX open_txn_by_producer ON open_txn (producer_id);

CREATE TABLE aborted_txn (
  topic_id     BYTEA   NOT NULL,
  partition    INTEGER NOT NULL,
  producer_id  BIGINT  NOT NULL,
  first_offset BIGINT  NOT NULL,
  last_offset  BIGINT  NOT NULL,
  PRIMARY KEY (topic_id, partition, last_offset)
);

CREATE TABLE txn_offset (
  producer_id  BIGINT  NOT NULL,
  group_id     TEXT    COLLATE "C" NOT NULL,
  topic        TEXT    COLLATE "C" NOT NULL,
  partition    INTEGER NOT NULL,
  "offset"     BIGINT  NOT NULL,
  leader_epoch INTEGER NOT NULL,
  metadata     TEXT    NOT NULL,
  PRIMARY KEY (producer_id, group_id, topic, partition)
);
CREATE INDEX txn_offset_by_group ON txn_offset (group_id);

CREATE TABLE group_claim (
  group_id   TEXT   COLLATE "C" PRIMARY KEY,
  epoch      BIGINT NOT NULL,
  generation BIGINT NOT NULL
);

-- The epoch is part of a key, so that a commit's lock (FOR KEY SHARE) holds off whoever would
-- supersede the session, and not the session's own heartbeat.
CREATE TABLE broker (
  id            BIGINT  PRIMARY KEY,
  epoch         BIGINT  NOT NULL,
  zone          TEXT    NOT NULL,
  host          TEXT    NOT NULL,
  port          INTEGER NOT NULL,
  control_url   TEXT    NOT NULL,
  wal           TEXT    NOT NULL,
  wal_is_shared BOOLEAN NOT NULL,
  state         TEXT    NOT NULL,
  deadline_ms   BIGINT  NOT NULL,
  UNIQUE (id, epoch)
);

CREATE TABLE lease (
  name         TEXT   COLLATE "C" PRIMARY KEY,
  broker_id    BIGINT NOT NULL,
  broker_epoch BIGINT NOT NULL,
  deadline_ms  BIGINT NOT NULL
);

-- Not compressed, so that a range is read without the bytes before it.
CREATE TABLE payload (
  object_key TEXT  COLLATE "C" PRIMARY KEY,
  data       BYTEA NOT NULL
);
ALTER TABLE payload ALTER COLUMN data SET STORAGE EXTERNAL;
