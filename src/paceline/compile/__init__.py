"""How functions are compiled: decorators, the cache on disk, linking."""
