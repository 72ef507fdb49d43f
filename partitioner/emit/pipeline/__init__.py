"""The step as stage functions in the order of a schedule, for one replica or several."""
