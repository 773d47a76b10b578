"""`python -m langgraph_pgstate` is `pgstate`."""

from langgraph_pgstate.cli import main

if __name__ == "__main__":
    main()
