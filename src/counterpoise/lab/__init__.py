"""Measurements around training: studies, experiments, evaluation, speed."""
