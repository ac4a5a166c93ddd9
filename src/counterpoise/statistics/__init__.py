"""Means, intervals and paired differences over few seeds or many prompts."""
