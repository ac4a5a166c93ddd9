"""Where prompts come from, and environments that answer a response."""
