INSERT INTO payload (object_key, data) VALUES (?, ?);
