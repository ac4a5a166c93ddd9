"""`poise bench` and other timings: speed, memory and precision, against peers and lower bounds."""
