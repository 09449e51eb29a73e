-- Users and rules, which all brokers of the log share.
UPDATE schema_version SET version = 5;

ALTER TABLE log ADD COLUMN access_version BIGINT NOT NULL DEFAULT 0;

CREATE TABLE access_rule (
  principal  TEXT COLLATE "C" NOT NULL,
  permission TEXT COLLATE "C" NOT NULL,
  operation  TEXT COLLATE "C" NOT NULL,
  type       TEXT COLLATE "C" NOT NULL,
  name       TEXT COLLATE "C" NOT NULL,
  pattern    TEXT COLLATE "C" NOT NULL,
  host       TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (principal, type, name, pattern, host, operation, permission)
);

CREATE TABLE access_verifier (
  name       TEXT COLLATE "C" NOT NULL,
  mechanism  TEXT COLLATE "C" NOT NULL,
  salt       TEXT NOT NULL,
  iterations INTEGER NOT NULL,
  stored_key TEXT NOT NULL,
  server_key TEXT NOT NULL,
  PRIMARY KEY (name, mechanism)
);
