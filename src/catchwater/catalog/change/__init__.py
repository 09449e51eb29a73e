"""What each change does inside its transaction, written once over `Db` for every database."""
