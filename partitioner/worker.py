"""`python -m partitioner.worker --port 2222` is `partition worker --port 2222`."""

import sys

from partitioner.cli import main

if __name__ == "__main__":
    sys.exit(main(["worker", *sys.argv[1:]]))
