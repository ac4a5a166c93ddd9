"""`poise bench` and further timings: speed, memory and precision, against peers and floors."""
