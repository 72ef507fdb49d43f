"""Bounds of cuts into stages by linear programs, in a process of their own."""
