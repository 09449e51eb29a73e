-- What transactions need, what many brokers need (the same tables in both databases), pins with a
-- cap and a state, and a way to find a timestamp without walking.
UPDATE schema_version SET version = 2;

-- Epochs of sessions and of claims are drawn from one counter, so none is ever given twice.
ALTER TABLE log ADD COLUMN next_epoch INTEGER NOT NULL DEFAULT 1;

-- The number of the newest backup. One in the object store with a higher number shows that this
-- catalog comes from an earlier time.
ALTER TABLE log ADD COLUMN last_backup INTEGER NOT NULL DEFAULT 0;

ALTER TABLE pin ADD COLUMN max_bytes INTEGER;
ALTER TABLE pin ADD COLUMN state TEXT NOT NULL DEFAULT 'reserved';

-- The largest timestamp of the partition's runs up to and with this one. It never falls along the
-- offsets, so the first run that reaches a timestamp is one descent of an index.
ALTER TABLE run ADD COLUMN reach_timestamp INTEGER NOT NULL DEFAULT -1;
UPDATE run SET reach_timestamp = told.reach
FROM (
  SELECT topic_id, partition, last_offset,
         max(max_timestamp) OVER (PARTITION BY topic_id, partition ORDER BY last_offset) AS reach
  FROM run
) AS told
WHERE run.topic_id = told.topic_id AND run.partition = told.partition
  AND run.last_offset = told.last_offset;
CREATE INDEX run_by_time ON run (topic_id, partition, reach_timestamp);

CREATE TABLE txn (
  transactional_id TEXT    PRIMARY KEY,
  producer_id      INTEGER NOT NULL,
  epoch            INTEGER NOT NULL,
  state            TEXT    NOT NULL,
  timeout_ms       INTEGER NOT NULL,
  started_ms       INTEGER NOT NULL,
  version          INTEGER NOT NULL,
  last_epoch       INTEGER NOT NULL,
  updated_ms       INTEGER NOT NULL,
  partitions       TEXT    NOT NULL             -- JSON [[topic id in hexadecimal, partition], …]
) WITHOUT ROWID;
CREATE INDEX txn_by_producer ON txn (producer_id);

CREATE TABLE open_txn (
  topic_id     BLOB    NOT NULL,
  partition    INTEGER NOT NULL,
  producer_id  INTEGER NOT NULL,
  first_offset INTEGER NOT NULL,
  PRIMARY KEY (topic_id, partition, producer_id)
) WITHOUT ROWID;
CREATE INDEX open_txn_by_producer ON open_txn (producer_id);

CREATE TABLE aborted_txn (
  topic_id     BLOB    NOT NULL,
  partition    INTEGER NOT NULL,
  producer_id  INTEGER NOT NULL,
  first_offset INTEGER NOT NULL,
  last_offset  INTEGER NOT NULL,
  PRIMARY KEY (topic_id, partition, last_offset)
) WITHOUT ROWID;

-- Positions that become the group's when the producer's transaction commits.
CREATE TABLE txn_offset (
  producer_id  INTEGER NOT NULL,
  group_id     TEXT    NOT NULL,
  topic        TEXT    NOT NULL,
  partition    INTEGER NOT NULL,
  "offset"     INTEGER NOT NULL,
  leader_epoch INTEGER NOT NULL,
  metadata     TEXT    NOT NULL,
  PRIMARY KEY (producer_id, group_id, topic, partition)
) WITHOUT ROWID;
CREATE INDEX txn_offset_by_group ON txn_offset (group_id);

CREATE TABLE group_claim (
  group_id   TEXT    PRIMARY KEY,
  epoch      INTEGER NOT NULL,
  generation INTEGER NOT NULL
) WITHOUT ROWID;

-- A session that has ended has no row.
CREATE TABLE broker (
  id            INTEGER PRIMARY KEY,
  epoch         INTEGER NOT NULL,
  zone          TEXT    NOT NULL,
  host          TEXT    NOT NULL,
  port          INTEGER NOT NULL,
  control_url   TEXT    NOT NULL,
  wal           TEXT    NOT NULL,
  wal_is_shared INTEGER NOT NULL,
  state         TEXT    NOT NULL,
  deadline_ms   INTEGER NOT NULL
);

CREATE TABLE lease (
  name         TEXT    PRIMARY KEY,
  broker_id    INTEGER NOT NULL,
  broker_epoch INTEGER NOT NULL,
  deadline_ms  INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE payload (
  object_key TEXT PRIMARY KEY,
  data       BLOB NOT NULL
);
