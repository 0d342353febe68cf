"""From a scenario to the arrays that the engine runs on."""
