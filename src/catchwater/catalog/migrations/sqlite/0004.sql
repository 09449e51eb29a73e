-- Groups outlive their coordinators: who their members are and what each was given; when positions
-- were committed, and since when a group has had no members, so that both can expire.
UPDATE schema_version SET version = 4;

-- What was committed before counts from now.
ALTER TABLE group_offset ADD COLUMN committed_ms INTEGER NOT NULL DEFAULT 0;
UPDATE group_offset SET committed_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000;
ALTER TABLE txn_offset ADD COLUMN committed_ms INTEGER NOT NULL DEFAULT 0;
UPDATE txn_offset SET committed_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000;

ALTER TABLE group_claim ADD COLUMN state TEXT NOT NULL DEFAULT '';  -- JSON; empty before any member
ALTER TABLE group_claim ADD COLUMN emptied_ms INTEGER;  -- null while it has members, or never had

CREATE TABLE group_member (
  group_id  TEXT NOT NULL,
  member_id TEXT NOT NULL,
  state     TEXT NOT NULL,                      -- JSON
  PRIMARY KEY (group_id, member_id)
);
