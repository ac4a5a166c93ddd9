"""The answers to addresses, as plain values that become JSON: one module for each kind of view."""
