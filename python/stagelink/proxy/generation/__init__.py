"""One request through two servers: its legs, retries, and the answer to the client."""
