"""The panels of a report, each a function of the run's data that returns a `Panel`."""
