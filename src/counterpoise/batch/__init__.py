"""Stage 4, batch: which rows share an optimizer step.

A composer is a pure function from rows to index lists; nothing here touches a tensor or a model.
"""
