"""`python -m autotune`, and the `autotune` command."""


def main() -> None:
    """Run the command line."""
    from autotune.cli import app

    app()


if __name__ == "__main__":
    main()
