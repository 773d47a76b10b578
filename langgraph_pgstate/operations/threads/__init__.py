"""Search, copy, deletion, pruning and expiry of threads; their branches and interrupts."""
