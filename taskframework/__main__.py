"""`python -m taskframework` runs the command line."""

from taskframework.cli.main import main

if __name__ == "__main__":
    main()
