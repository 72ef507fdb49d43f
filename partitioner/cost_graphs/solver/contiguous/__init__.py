"""Each device gets one piece of a chain: dynamic programs and a CP-SAT model that prove the best."""
