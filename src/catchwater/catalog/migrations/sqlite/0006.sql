-- Users and rules, which all brokers of the log share.
UPDATE schema_version SET version = 6;

ALTER TABLE log ADD COLUMN access_version INTEGER NOT NULL DEFAULT 0;

CREATE TABLE access_rule (
  principal  TEXT NOT NULL,
  permission TEXT NOT NULL,
  operation  TEXT NOT NULL,
  type       TEXT NOT NULL,
  name       TEXT NOT NULL,
  pattern    TEXT NOT NULL,
  host       TEXT NOT NULL,
  PRIMARY KEY (principal, type, name, pattern, host, operation, permission)
);

CREATE TABLE access_verifier (
  name       TEXT NOT NULL,
  mechanism  TEXT NOT NULL,
  salt       TEXT NOT NULL,                     -- base64, as both keys
  iterations INTEGER NOT NULL,
  stored_key TEXT NOT NULL,
  server_key TEXT NOT NULL,
  PRIMARY KEY (name, mechanism)
);
