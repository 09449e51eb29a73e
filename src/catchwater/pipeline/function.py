"""What a user writes: a typed function of one key's events (placeholder until its owner lands)."""

function = Context = Keyed = Out = None
