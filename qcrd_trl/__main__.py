"""`python -m qcrd_trl` is `qcrd`; so is `accelerate launch -m qcrd_trl`."""

import sys

from .cli.main import main


if __name__ == "__main__":
    sys.exit(main())
