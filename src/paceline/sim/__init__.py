"""Virtual time: drives the data-plane core through links, hosts and faults."""
