"""Import the rollouts of prime-rl: traces, and the token exports of older versions."""
