"""`python -m examples.shop`: as `headwater demo`."""

import sys

from headwater.cli import main

sys.argv[1:1] = ["demo"]
main()
