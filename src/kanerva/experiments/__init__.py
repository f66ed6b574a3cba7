"""The paper's experiments, and what its reviewers asked for: each computes numbers, writes JSON, draws figures."""
