"""What the KV caches of a worker are, and where they lie."""
