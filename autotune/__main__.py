"""`python -m autotune`, and the `autotune` command."""

import os
import sys
import time


def main() -> None:
    """Run the command line; where nobody reads on, as behind `| head -1`, it ends with exit code 1 and says nothing."""
    started = time.monotonic()
    from autotune.cli.app import app

    try:
        try:
            app(prog_name="autotune", obj=started)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
