"""How good the policy is on problems it was not trained on."""

# The default of --bench.
PAPER = ("aime24", "aime25", "amc23", "olympiadbench", "minerva", "math500")
