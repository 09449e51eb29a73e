-- SQLite reads everything of one transaction at one moment anyway.
SELECT 1;
