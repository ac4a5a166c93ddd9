"""`poise warmup`: supervised training on worked solutions, so that RL has something to improve."""
