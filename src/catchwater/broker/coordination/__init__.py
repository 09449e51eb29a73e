"""What a group of clients agrees on: memberships and transactions, as state machines."""
