"""`python reasoning_gym_environment.py serve`, from the root of the repository.

The package of the same name beside this file wins the import.
"""

if __name__ == "__main__":
    from reasoning_gym_environment.cli import main

    main()
