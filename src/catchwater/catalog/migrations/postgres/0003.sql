-- Groups outlive their coordinators: who their members are and what each was given; when positions
-- were committed, and since when a group has had no members, so that both can expire.
UPDATE schema_version SET version = 3;

-- What was committed before counts from now.
ALTER TABLE group_offset ADD COLUMN committed_ms BIGINT NOT NULL DEFAULT 0;
UPDATE group_offset SET committed_ms = (extract(epoch FROM now()) * 1000)::bigint;
ALTER TABLE txn_offset ADD COLUMN committed_ms BIGINT NOT NULL DEFAULT 0;
UPDATE txn_offset SET committed_ms = (extract(epoch FROM now()) * 1000)::bigint;

ALTER TABLE group_claim ADD COLUMN state TEXT NOT NULL DEFAULT '';
ALTER TABLE group_claim ADD COLUMN emptied_ms BIGINT;

CREATE TABLE group_member (
  group_id  TEXT COLLATE "C" NOT NULL,
  member_id TEXT COLLATE "C" NOT NULL,
  state     TEXT NOT NULL,
  PRIMARY KEY (group_id, member_id)
);
