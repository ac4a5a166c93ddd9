"""How often the verifier is wrong, on the reference answers of real benchmarks."""
