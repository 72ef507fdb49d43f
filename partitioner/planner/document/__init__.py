"""The search result as a plan document."""
