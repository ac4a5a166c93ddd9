"""Stage 6: what an update did to every token, and which tokens of the batch did it.

Equations, figures, tables, algorithms and "the paper" are those of arXiv:2605.08666 (Cancellation),
unless another paper is named.
"""
