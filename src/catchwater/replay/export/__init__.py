"""A range of the log as a folder of Parquet files: tasks write them, no row passes the JVM."""
