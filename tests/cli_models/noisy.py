"""Prints and warns while it is loaded, in Python and below it."""

import os
import subprocess
import sys
import warnings

from small import build_model  # noqa: F401

print("printed")
print("told", file=sys.stderr)
warnings.warn("the user's own warning", stacklevel=1)
os.write(1, b"written below Python\n")
subprocess.run([sys.executable, "-c", "print('by a child process')"], check=True)
