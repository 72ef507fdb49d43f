"""The machine to plan for: named devices, their figures, and the links between them."""
