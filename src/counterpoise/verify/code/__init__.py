"""Programs against tests: the verifier `code`, and the sandbox that it runs programs in."""
