"""What surrounds the loop: its state, metrics, interrupts, held-out evaluation, estimates."""
