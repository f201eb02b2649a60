"""What is allowed, and whether it was kept: policy, budgets, verdicts, ratchet. Measures nothing."""
