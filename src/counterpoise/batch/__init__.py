"""Stage 4: which rows share an optimizer step.

A composer is a pure function from rows to index lists; nothing here touches a tensor or a model.
"""
