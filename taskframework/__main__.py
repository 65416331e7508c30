"""The command line, started by its name or as `python -m taskframework`."""

import sys

#: The exit code of a command that Ctrl-C ended, as shells use it.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while its modules are still being imported."""
    try:
        from taskframework.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
