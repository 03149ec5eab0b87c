"""The command line: `main` runs the app and turns errors of ours and of the machine into one line on stderr.

Exit codes: 0 done, 1 error, 2 usage, 3 a check failed, 130 interrupted, 143 terminated.
"""

import atexit
import gc
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of `outlierlens`; ends the process."""
    code = 1
    # Imports leave no garbage, and neither they nor the end of the process are worth a search for it: a fifth of a scan.
    gc.disable()
    atexit.register(gc.freeze)
    try:
        try:
            _run(sys.argv[1:])
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) and ending.code else 1
            raise
        finally:
            gc.unfreeze()  # for a process that goes on, such as a test's
            gc.enable()
            sys.stdout.flush()  # a full disk and a reader that went away show here, not while Python shuts down
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`): not our error, and nothing more can be written.
        drop_output()
        sys.stderr.close()
        raise SystemExit(code) from None
    except KeyboardInterrupt:
        drop_output()
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        from outlierlens.errors import takes_a_line, told

        if not takes_a_line(error):
            raise
        drop_output()
        print(f"error: {told(error, reproduce())}", file=sys.stderr)
        raise SystemExit(getattr(error, "code", code)) from None
    raise SystemExit(0)


def _run(words: list[str]) -> None:
    if words in ([], ["--help"], ["-h"]) and (sys.stdout.encoding or "").lower().startswith("utf"):
        from shutil import get_terminal_size

        from outlierlens.cli.overview import overview

        print(overview(get_terminal_size().columns))
        return
    from outlierlens.cli.app import run

    run(words)


def reproduce(*without: str) -> str:
    """The command line that is running, quoted for a shell, without these flags."""
    from outlierlens.errors import command

    return command(*(word for word in sys.argv[1:] if word not in without))


def drop_output() -> None:
    """Let what stdout could not write vanish; Python would try once more at its end, and complain."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
