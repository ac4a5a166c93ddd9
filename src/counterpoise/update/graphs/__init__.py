"""CUDA graphs for the passes of an update: padding to few sizes, capture and replay."""
