"""Stage 3, credit: rewards become advantages within each group, and token weights refine them."""
