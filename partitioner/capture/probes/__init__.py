"""What only running a few ops can tell: whether rows of the batch meet, whether a loss averages."""
