"""ESA against ATP, SwitchML, ring, parameter server and two strawmen."""
