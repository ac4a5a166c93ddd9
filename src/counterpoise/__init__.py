"""Counterpoise: critic-free RL in which the batch is an object. Start reading at `loop.py`."""

__version__ = "0.2.0"
