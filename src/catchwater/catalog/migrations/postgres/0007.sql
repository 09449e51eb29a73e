-- Quotas of users and client ids, which all brokers of the log share.
UPDATE schema_version SET version = 7;

CREATE TABLE client_quota (
  user_name TEXT COLLATE "C" NOT NULL,
  client_id TEXT COLLATE "C" NOT NULL,
  key       TEXT COLLATE "C" NOT NULL,
  value     DOUBLE PRECISION NOT NULL,
  PRIMARY KEY (user_name, client_id, key)
);
