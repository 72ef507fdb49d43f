"""Pins, forbidden devices and colocation: the ops they match, and conflicts between them."""
