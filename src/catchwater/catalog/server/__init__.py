"""How a broker talks to a PostgreSQL server: connections, their failures, and notices."""
