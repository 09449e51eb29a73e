-- Quotas of users and client ids, which all brokers of the log share.
UPDATE schema_version SET version = 8;

CREATE TABLE client_quota (
  user_name TEXT NOT NULL,                      -- "" any, "*" any other, "=" and a name
  client_id TEXT NOT NULL,                      -- in the same way
  key       TEXT NOT NULL,
  value     REAL NOT NULL,
  PRIMARY KEY (user_name, client_id, key)
);
