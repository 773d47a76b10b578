"""The queue of runs: enqueueing, claiming, ending, cancelling and listing them."""
