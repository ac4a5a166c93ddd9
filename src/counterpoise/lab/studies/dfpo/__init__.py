"""DFPO's argument (arXiv:2604.13088): what breaks cancellation, and whether repairing it helps."""
