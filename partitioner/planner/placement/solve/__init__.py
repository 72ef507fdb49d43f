"""The placement solver: CP-SAT in a process of its own, asked through `client.solve`.

Only the child's modules (`__main__`, `search`, `model`) import OR-Tools: once TensorFlow is loaded into a
process, CP-SAT crashes in it.
"""
