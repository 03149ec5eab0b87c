"""The command line: `main` runs the app and turns our own errors into one line on stderr.

Exit codes: 0 done, 1 error, 2 usage, 3 a check failed, 130 interrupted, 143 terminated.
"""

import sys

from outlierlens.errors import OutlierlensError, one_line


def main() -> None:
    """Entry point of `outlierlens`."""
    from outlierlens.cli.app import app

    try:
        app()
    except OutlierlensError as error:
        print(f"error: {one_line(str(error))}", file=sys.stderr)
        raise SystemExit(1) from None
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`): not our error, and nothing more can be written.
        sys.stderr.close()
        raise SystemExit(1) from None
