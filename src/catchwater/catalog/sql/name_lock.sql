-- Two transactions about one name that has no row yet. In SQLite writers are alone anyway.
SELECT ?;
