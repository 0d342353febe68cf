"""A cluster in a box: servers as network namespaces, joined by limited links, on one machine."""
