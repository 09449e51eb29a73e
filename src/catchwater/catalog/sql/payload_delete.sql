DELETE FROM payload WHERE object_key = ?;
