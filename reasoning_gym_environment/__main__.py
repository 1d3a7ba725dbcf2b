"""`python -m reasoning_gym_environment serve`."""

from .cli import main

if __name__ == "__main__":
    main()
