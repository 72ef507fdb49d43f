"""`python -m partitioner` is the command line."""

import sys

from partitioner.cli import main

sys.exit(main())
