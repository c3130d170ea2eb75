"""``python -m kvcrucible`` runs the command line."""

from kvcrucible.cli.main import main

if __name__ == "__main__":
    main()
