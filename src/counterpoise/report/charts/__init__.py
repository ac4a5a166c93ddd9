"""Charts of the reports: the quantities drawn, their figures, and SVG or Vega output."""
