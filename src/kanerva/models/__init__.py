"""Every model."""
