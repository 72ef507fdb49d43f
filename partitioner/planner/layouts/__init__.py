"""How devices are shared out: one replica or several, one device or several each; the best of each is compared."""
