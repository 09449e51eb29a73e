"""What a function asks the world outside: bounded, and answered the same on every replay."""
