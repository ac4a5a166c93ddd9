"""Verification of mathematical answers: by their text first, then by computer algebra."""
