"""Which pairs of tokens push each other, and what eq. 10 leaves out (Fig. 2)."""
