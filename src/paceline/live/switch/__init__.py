"""The live switch: shards, the table of jobs, HTTP in front, what it tells."""
