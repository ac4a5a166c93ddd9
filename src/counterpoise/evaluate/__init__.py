"""How good the policy is on problems it was not trained on."""
