UPDATE pin SET state = ? WHERE id = ?;
