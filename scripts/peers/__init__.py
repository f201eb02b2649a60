"""What bench_peers.py is made of: the model in every format, one file a contender, the table."""
