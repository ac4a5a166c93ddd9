"""Which token weights find valuable tokens, what they cost, and whether they train better."""
