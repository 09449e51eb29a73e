SELECT substr(data, ?, ?) FROM payload WHERE object_key = ?;
