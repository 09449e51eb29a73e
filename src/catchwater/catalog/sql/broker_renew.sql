UPDATE broker SET state = ?, deadline_ms = ? WHERE id = ? AND epoch = ?;
