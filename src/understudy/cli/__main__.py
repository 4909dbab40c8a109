"""`python -m understudy.cli`."""

from understudy.cli import entry

if __name__ == "__main__":
    entry()
