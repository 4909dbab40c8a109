"""`python -m understudy.cli`."""

from understudy.cli import main

if __name__ == "__main__":
    main()
