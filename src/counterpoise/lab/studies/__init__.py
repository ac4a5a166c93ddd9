"""Studies that repeat the paper's figures and tables: measure, judge by a fixed rule, draw."""
