"""How removing tokens from the loss changes the update of another token (Table 1, Fig. 3)."""
