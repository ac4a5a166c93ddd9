"""`poise experiment`: compare arms over learning rates and seeds by a rule fixed beforehand."""
