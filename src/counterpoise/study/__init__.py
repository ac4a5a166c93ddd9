"""The paper's figures and tables: measure, judge by a rule fixed beforehand, draw."""
