"""The command line, by its name or as `python -m taskframework`."""

import sys

#: What a shell tells of a command that Ctrl-C ended.
_INTERRUPTED = 130


def main() -> None:
    """Run the command line. Ctrl-C ends it without a traceback, also while its code is still being read."""
    try:
        from taskframework.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
