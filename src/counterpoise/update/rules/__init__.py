"""Rules of an optimizer step: methods that weight its tokens or add a term to its loss."""
