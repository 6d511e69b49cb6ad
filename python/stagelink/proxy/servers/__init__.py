"""Which servers there are: the table of them, and the heartbeats that fill it."""
